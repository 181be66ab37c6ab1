"""Numbers that tune something in more than one room of the package, each with its reason."""

TOLERANCE = 1e-9  # ``tol`` by default: the length of the last step, relative to the answer
PEER_TOLERANCE = 1e-12  # of scikit-learn's estimators where they are compared: at the optimum
ROUNDED = 1 + 1e-9  # covers the rounding of sums, roots and norms of a few products
SLACK = 1 + 1e-3  # covers norms and lengths in computed coordinates, far beyond their rounding
HUBER_EPSILON = 1.35  # scikit-learn's default: 95 % as good as least squares on normal residuals
HUBER_ALPHA = 1e-4  # scikit-learn's default
C_SLIDER = (1e-2, 1e3)  # from a strong penalty to hardly any, for whoever drags it
