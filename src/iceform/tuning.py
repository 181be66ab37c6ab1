"""Numbers that tune something: how hard a search looks, how much is held at once, for how long.

None of them decides an answer: with others a table is found sooner or later, a proof is wider or
narrower, memory is larger or smaller, and what is proven holds all the same. Each has its reason
beside it. Numbers of rounding are in :mod:`iceform.arithmetic.units`.
"""

EPS = 1e-6  # the error that is certified where nobody asks for another

# arithmetic/eigenvalues.py
EIGENVALUES_BLOCK = 256  # rows of a Gram matrix that are summed at once

# program/tape.py
TAPE_SMALL = 0.125  # share of the second order in a bound that needs no sharper radii
TAPE_LEAF = 16  # terms that are summed in any order; such sums are added in pairs

# certificates/result.py
RESULT_SHOWN = 12  # entries of an answer that fit on a screen

# certificates/witness.py
WITNESS_RATE = 2e9  # multiplications a second that a literal pass may be counted on for
WITNESS_ENTRIES = 8  # of a layer, at most
WITNESS_KEPT = 4  # prompts that are kept of a run, each as likely as any other
REPLAY_SECONDS = 0.03  # that running entries again may take,
WITNESS_APART = 2  # points run again that have a prompt each
REPLAY_SHARE = 0.1  # or this share of the run, whichever is more

# computer/attest.py
REPLAYED = 16  # cycles or pieces of a run that are kept to be run again

# computer/compile.py
# Turns of a counted loop for which a parameter without a range is meant.
COMPILE_MOST_STEPS = 1000.0
COMPILE_HELD = 32  # bytes a datum that is drawn: itself and three values made of it
COMPILE_LOWER = 16.0  # a parameter without a range may be smaller by this factor than its default,

# computer/computer.py
COMPUTER_LOOK = 64  # cycles between two looks at whether a literal run has come to a halt
COMPUTER_LIMIT = 1 << 20  # cycles after which a program that should halt is taken not to
COMPUTER_REPLAYED = 1 << 23  # attention entries at most of a cycle that is run again with all lanes
COMPUTER_FEW_REPLAYED = 1 << 18  # and of one that is run again with few

# computer/cuda_graphs.py
# Instructions of a graph: what it has noted is looked at once, in one stack.
COMPUTER_GRAPHS_LONGEST = 64

# computer/fused.py
FUSED_FEW = 64  # lanes that tell most variables with different components

# computer/lookups.py
COMPUTER_LOOKUPS_NOTED = 1 << 10  # extents held before they are looked at
COMPUTER_LOOKUPS_MOST_ENTRIES = 64  # of a table that is found by one exponential
COMPUTER_LOOKUPS_CACHED = 1 << 16  # arguments at once, in cache

# computer/proofs.py
PROOFS_BITS = 128  # to begin with
PROOFS_MOST_BITS = 1 << 13  # bits of a ball, after which an answer counts as out of reach
PROOFS_SHARE = 2.0**-10  # of the distance that the radius of the exact answer may be
PROOFS_NOTHING = 2.0**-60  # distances below this need no finer radius

# computer/jacobians.py
JACOBIAN_ENTRIES = 64  # of a loop's states, and rounds to find their weights
JACOBIAN_CELLS = 8 * JACOBIAN_ENTRIES  # that the domain of a sample is cut into

# computer/ranges.py
RANGES_DRAWS = 8  # random inputs whose runs show how large values get
RANGES_PLAIN = 3  # rounds of joining before ends that move go on to 0 or to the next power of 4
RANGES_ROUNDS = 12  # of joining before states that still grow are given a bound
RANGES_TURNS = 2000  # of a while_ loop in a draw
RANGES_CELLS = 256  # that a range is cut into for a scalar function

# computer/rounding.py
ROUNDING_CELLS = 8  # per entry of a table

# computer/spectral.py
SPECTRAL_CELLS = 192  # of a range of eigenvalues
# Weights of the states against each other that are tried for a norm.
SPECTRAL_SCALES = (1.0, 0.3, 0.1, 0.03, 0.01)

# computer/tables.py
PROGRAM_TABLES_FITS = ((0.25, 6), (0.4, 4))  # sharpness and guards
# Cells of a table, from few to many; the first that holds eps is taken.
PROGRAM_TABLES_TRIED = (6, 10, 16, 24, 36, 52, 76, 110, 160, 230, 330)
# Kinked curves: how fast the spacing grows from a kink on, and the share of equally spaced entries.
PROGRAM_TABLES_GRADINGS = ((0.5, 0.1), (0.4, 0.3), (0.3, 0.1), (0.22, 0.3))
# The same for tables whose entries crowd.
PROGRAM_TABLES_TRIED_GRADED = (60, 120, 200)
# On the round range of a table than on the one that is needed, at most.
PROGRAM_TABLES_STEEPER = 4.0

# computer/trace.py
TRACE_MOST_ROUNDS = 6  # times a body is run before its names must have settled

# expressions/extremes.py
EXTREMES_FIRST = 64  # cells to start with
EXTREMES_LEAST = 256  # cells that a round costs as much as
EXTREMES_WORK = 1 << 14  # cells that one bound may cost
EXTREMES_ROUNDS = 20  # bisections
EXTREMES_BEYOND = 3  # coefficients after the one that is enclosed
EXTREMES_LOOSE = 1.25  # the same for a ratio of derivatives
TIGHT = 1.05  # stop where a bound is within this factor of what nothing is below
EXTREMES_NEGLIGIBLE = 2.0**-20  # of sup|f|/(half the range)^order: smaller derivatives need no care

# expressions/formulas/formula.py
FORMULA_MOST_NODES = 10_000  # of a derivative
FORMULA_MOST_DEPTH = 200  # of a tree, before Python runs out of stack

# expressions/scalar.py
SCALAR_ZOOM = 8  # each look is this much closer
# Share of the slope's jump that must survive a closer look (a smooth f keeps 1/8).
SCALAR_KEEP = 0.4
SCALAR_LOOKS = 12  # 8^-12 of a coarse cell
SCALAR_MOST = 16  # more kinks than this is not a piecewise smooth function

# expressions/tracing.py
TRACING_MOST = 2000  # operations

# heads/lookups.py
ENTRIES_AT_ONCE = 1 << 22  # of attention or look-ups held at once: 32 MiB of float64
# heads/variants.py: of attention alone, on a GPU all of them: larger ones are new pages each time.
ATTENTION_ENTRIES = ENTRIES_AT_ONCE // 4

# heads/network.py
NETWORK_COPIED = 1 << 26  # bytes of copies that are kept, to be compared instead of hashed
NETWORK_SPARSE = 1 / 8  # of a buffer's entries: where fewer are not 0, only those are copied
NETWORK_SMALL = 1 << 20  # bytes of a buffer that is compared whole, which is quicker

# networks/cuda_graphs.py
NETWORK_GRAPHS_KEPT = 4  # kinds of calls: each recording holds the memory of a run

# run/base.py
BACKEND_LOGITS = 1 << 18  # held at once: they stay in cache

# run/primitives.py
PRIMITIVES_CACHED = 1 << 22  # bytes of samples that stay in cache between two looks at them
PRIMITIVES_SMALL = 1 << 12  # weights: below this one softmax is quicker than a look-up's own call

# run/windowed.py
WINDOWED_FEW = 4096  # samples whose sums cost nothing in float64
WINDOWED_LONGEST = 120.0  # seconds that a compiler may take
WINDOWED_PART = 1 << 15  # entries, or rows of samples, at once in a thread: they stay in cache
# Entries that look_up.c looks up together, and rows whose sum is float32 where there are many.
WINDOWED_LANES = 128
WINDOWED_LINE = 16  # numbers that look_up.c reads at once, at most

# tables/interpolant.py
INTERPOLANT_TABLE = 1024  # points either side of a kink in the table that brackets a node
INTERPOLANT_NEWTON = 6  # steps from a table cell, each squaring the error of a smooth function

# tables/local.py
NUMBERS_AT_ONCE = 1 << 21  # entries of (points, window) held at once: 16 MiB of float64
LOCAL_TAIL_SHARE = 2.0**-6  # of the table's own error that leaving far tokens out may add
LOCAL_PER_CELL = 4  # intervals of a cell on which steepness and rounding are bounded,
FEWEST_POINTS = 512  # and of the whole range: small grids see narrow features too
LOCAL_WIDEST = 32  # tokens either side beyond which a window costs as much as the whole table

# tables/norm_quotient.py
NORM_QUOTIENT_SAMPLES = 400  # of a fit of exponentials, equally spaced in ln s
# Of their proof, equally spaced in ln s: (ln(high/low)/2^14)^4 is below rounding.
NORM_QUOTIENT_CELLS = 1 << 14
NORM_QUOTIENT_ORDER = 4  # of the Taylor expansion in a cell of that proof
NORM_QUOTIENT_MOST_TERMS = 24  # exponentials that 1/s may be a sum of
NORM_QUOTIENT_CUTOFF = 1e-13  # singular values of a fit, relative to the largest
NORM_QUOTIENT_GROWTH = 1.08  # of the tokens along an axis, from one try to the next

# tables/posterior.py
POSTERIOR_MESH_FIRST = 16  # intervals per cell to start with
POSTERIOR_MESH_WORK = 1 << 25  # intervals times window that one estimate may cost
# How many times less, once eps is held and only tightness is to be gained.
POSTERIOR_POLISHING = 8
POSTERIOR_MESH_POLISH = POSTERIOR_MESH_WORK // POSTERIOR_POLISHING
POSTERIOR_ORDER = 8  # of the expansion: fewer intervals, dearer ones
POSTERIOR_FIRST = LOCAL_PER_CELL  # intervals per cell to start with
POSTERIOR_LEAST = 128  # intervals in all to start with
POSTERIOR_SPLIT = 4  # parts of an interval that is refined
POSTERIOR_MOST = 1 << 18  # intervals that one certificate may cost
POSTERIOR_POLISH = POSTERIOR_MOST // POSTERIOR_POLISHING
# No refinement where the bound is within this factor of an error that is taken.
POSTERIOR_GOOD = 1.5
POSTERIOR_NARROW = 8  # units in the last place: no narrower interval is worth splitting,
POSTERIOR_FINEST = 2.0**-20  # at places no nearer to 0 than this share of the range

# tables/regimes.py
REGIMES_REACHES = 3  # omega_f(m h) is tried for m = 1 .. 3
REGIMES_PARTS = 16  # parts of a cell at whose multiples omega_f is known
REGIMES_POINTS = 4  # mesh points in a part, where f is only looked at
REGIMES_CHUNK = EXTREMES_WORK  # parts that are enclosed at once
REGIMES_SAMPLES = 12  # sample points per token for the fit
REGIMES_ROUGH_SAMPLES = REGIMES_SAMPLES // 3  # the same while a fit is still rough
REGIMES_CHECKS = 7  # check points per cell; coprime with the samples, so they fall between them
REGIMES_MANY = 128  # cells beyond which half the samples per cell do
# Tokens tried, then bisected.
REGIMES_SIZES = (9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513)
MOST_OF_EPS = 0.9  # what a first try may use of eps: what is not known yet gets the rest
REGIMES_GROWTH = 1.06  # more tokens when a certificate misses eps by a little
REGIMES_STALLED = 2  # sizes in a row that bring less than a factor two,
REGIMES_BLIND = 1e-2  # once a table is within this share of f's size
REGIMES_ROUNDS = 2  # passes over the knobs
# Tokens beyond which grids are compared by fits to a third of the points,
REGIMES_ROUGH = REGIMES_MANY // 2
REGIMES_QUICK = REGIMES_MANY + 1  # and beyond which one pass must do: a fit costs their cube
REGIMES_RETRIES = 6  # larger grids tried when a certificate misses eps by a little

MESH = 4096  # cells of a range, or of a cell, beyond which nothing is looked for
PLACES = 257  # at which a function is compared with another
STORAGE_MOST_FILES = 4096  # tables that the cache on disk keeps

# targets
ABLATION_SAMPLES = 4  # of the data on which a folder records what heads of its last layer do
CHECKPOINT_CYCLES = 512  # of a computer for which nobody says how many
CHECKPOINT_POSITIONS = 1024  # tokens at least that a folder of a descent takes
CHECKPOINT_SAMPLES = 32  # at most, of the domain for which its reach is chosen
EXAMPLE_SAMPLES = 16  # of the domain that a card quotes
DESCENT_TABLE_EPS = {"torch.float64": 5e-14, "torch.float32": 1e-7}  # asked of a looked-up f
PAIRS_HALVINGS = 16  # of the spacing of pairs of heads that are tried
PAIRS_STEPS = 32  # the remainder of even weights is sampled up to multiples of 1/32,
PAIRS_SAMPLES = 1 << 14  # at so many places
PAIRS_NOISE = 128.0  # units beside an exponential's for which pairs are chosen,
DECODER_NOISE = 3 * PAIRS_NOISE / 2  # and of a decoder, whose sums are longer
RECURRENCE_POINTS = 8  # where a polynomial is looked at, for each of its degrees

# targets/text
CAMPAIGN_LINES = 18  # at most, of a random program
CAMPAIGN_FILLED = 4  # cells of every array that it gives a value
PROOF_LEVELS = 4096  # up to which all pairs of numbers are enumerated
PROOF_ROWS = 256  # of a table of pairs at once
TEXT_BITS = 64  # of the balls that decide a rounding to begin with
TEXT_RUN_BITS = 300  # of the balls that stand for real numbers in a whole run
TEXT_STEPS = 50_000  # that are followed to say how many tokens a run needs
TEXT_POWER = 16  # by repeated products; above, by exponential and logarithm
TEXT_QUOTED = 30  # letters of a word that an error quotes
TEXT_COLUMNS = 96  # of a line of data
