"""Numbers that tune something in more than one room of the package, each with its reason."""

TOLERANCE = 1e-9  # ``tol`` by default: the length of the last step, relative to the answer
PEER_TOLERANCE = 1e-12  # of scikit-learn's estimators where they are compared: at the optimum
ROUNDED = 1 + 1e-9  # covers the rounding of sums, roots and norms of a few products
SLACK = 1 + 1e-3  # covers norms and lengths in computed coordinates, far beyond their rounding
HUBER_EPSILON = 1.35  # scikit-learn's default: 95 % as good as least squares on normal residuals
HUBER_ALPHA = 1e-4  # scikit-learn's default
PATIENCE = 12  # steps in which a fit gets less than PROGRESS nearer before it is at its floor
PROGRESS = 0.9
GROWTHS = 12  # balls tried for a proof, each twice as large
NEARBY = 16  # lines up to this many times as large as the one found, or as 1
TEST_SHARE = 0.2  # of the rows, where nobody asks for another
SMALLEST = 1e-140  # of distances whose squares, times 1e10, are normal
PENALTY_SLIDER = (HUBER_ALPHA, 10)  # from hardly any penalty to a strong one
SHARE_SLIDER = (0.02, 0.98)  # of samples below: the tails are of few
C_SLIDER = (1e-2, 1e3)  # from a strong penalty to hardly any, for whoever drags it
