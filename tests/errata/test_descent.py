"""Gradient descent, least squares and ridge as printed, and as iceform builds them."""

import itertools
import math

import pytest
import torch

import iceform as ice
from iceform.paper import Schedule, steps_needed
from tests.errata import printed
from tests.errata.common import (
    F64,
    UNIT,
    assert_apart,
    assert_certified,
    assert_on_page,
    drawn,
    largest,
    literal_rows,
    normal,
    tensors,
    uniform,
)

# ---------------------------------------------------------------------------------------------
# one step: cor:in-context-sim-gd
# ---------------------------------------------------------------------------------------------


def test_printed_readout_is_the_mean_gradient_not_the_step():
    """cor:in-context-sim-gd reads the per-sample gradients out with u = 1/n and calls the result
    w - eta grad. It is grad: eta and w are nowhere. x = 1, y = .5, w = 2, eta = .1: 1.5 instead of
    1.85 (and 3.5 by the first line of the proof, which adds w outside the layer). iceform's value
    rows are w - eta v_k x_i, and weights that add up to one carry w.
    """
    x, y, w = tensors([[1.0]], [0.5], [2.0])
    lr = 0.1
    gradients = ice.paper.SampleGradients(
        "squared", dim=1, samples=1, bound=2.0, eps=1e-9, backend="literal"
    )
    readout = torch.full((1, 1), 1.0, dtype=F64)  # u = (1/n) 1_n with n = 1
    read = readout.T @ literal_rows(gradients, x, y, w)
    target = float(w - lr * (w * x[0] - y) * x[0])
    assert target == pytest.approx(1.85)
    assert float(read) == pytest.approx(1.5, abs=1e-9)
    assert float(w + read) == pytest.approx(3.5, abs=1e-9)

    em = ice.paper.GradientStep(
        "squared", lr, dim=1, samples=1, bound=2.0, eps=1e-9, backend="literal"
    )
    assert abs(float(em(x, y, w)) - target) <= em.certificate.error <= 1e-9


def attended(x, y, w, nodes, f, beta):
    return printed.residual_map(x, y, w, nodes, f, 0.0, beta=beta, square_query=1.0)


def retrieved(x, y, w, nodes, f, beta):
    return printed.hopfield_residual(x, y, w, nodes, f, 0.0, beta, square_query=1.0)


@pytest.mark.parametrize("layer", [attended, retrieved])
def test_per_sample_gradients_need_a_continuous_derivative(layer):
    """cor:in-context-GD-attn and cor:in-context-GD-hop ask for a differentiable l and set f = l',
    where thm:attn_sim_f and thrm:hopfield_sim_f need a continuous f. l(t) = t^2 sin(1/t) is
    differentiable, but l' jumps between -1 and 1 near 0; with x = 1, y = 0 and w = 1/(k pi) the
    layer, its sign mended, is off by almost 1, however fine its grid. For Huber's loss, in C^1, the
    same layer follows its grid.
    """

    def slope(t):
        safe = torch.where(t == 0, 1.0, t)
        return torch.where(t == 0, 0.0, 2 * t * torch.sin(1 / safe) - torch.cos(1 / safe))

    def off(f, cells):
        nodes, beta = printed.grid(2, cells), 12 * (cells / 4) ** 2
        points = torch.tensor([[1 / (k * math.pi)] for k in range(2000, 2020)], dtype=F64)
        return max(
            largest(layer(x, y, w, nodes, f, beta) - printed.exact_map(x, y, w, f)) for w in points
        )

    x, y = torch.ones(1, 1, dtype=F64), torch.zeros(1, dtype=F64)
    for cells in (200, 2000):
        assert_apart(off(slope, cells), 0.9, off(lambda t: t.clamp(-0.5, 0.5), cells), 2 / cells)


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_no_function_f_makes_the_printed_readout_a_step(loss):
    """Could eta and w hide in f? At x = 0 every f(w.x - y) x is 0 and so is the printed readout,
    but the step leaves w where it is.
    """
    generator = torch.Generator().manual_seed(0)
    x, y, w = torch.zeros(3, 2, dtype=F64), uniform(generator, -1, 1, 3), tensors([0.7, -0.4])[0]
    options = {"dim": 2, "samples": 3, "eps": 1e-2, "backend": "literal"}
    read = ice.paper.SampleGradients(loss, **options)(x, y, w).mean(0)
    em = ice.paper.GradientStep(loss, 0.3, **options)
    assert largest(read - w) == pytest.approx(0.7, abs=1e-12)
    assert largest(em(x, y, w) - w) <= em.certificate.terms["rounding"]


def test_ridge_shrinkage_is_exact_and_pseudo_samples_need_the_old_readout():
    """thm:attn_sim_rr asks for "the regularization signal included in the prompt". Shrinking the
    carried w by 1 - eta lambda is exact. Pseudo-samples sqrt(n lambda) e_k with label 0 work as
    well, but then the readout must stay 1/n: 1/(n + d) gives another gradient.
    """
    n, d, lr, l2 = 4, 2, 0.25, 0.5
    generator = torch.Generator().manual_seed(1)
    x, y, w = drawn(generator, n, d)
    em = ice.paper.GradientStep("squared", lr, l2, dim=d, samples=n, eps=1e-9, backend="literal")
    assert_certified(em, x, y, w)
    still = em(torch.zeros_like(x), y, w)
    assert largest(still - (1 - lr * l2) * w) <= 64 * UNIT

    pseudo = math.sqrt(n * l2) * torch.eye(d, dtype=F64)
    more = ice.paper.SampleGradients(
        "squared", dim=d, samples=n + d, bound=math.sqrt(n * l2), eps=1e-9, backend="literal"
    )
    total = more(torch.cat([x, pseudo]), torch.cat([y, torch.zeros(d, dtype=F64)]), w).sum(0)
    exact = em.reference(x, y, w)
    assert largest(w - lr * total / n - exact) <= lr * (n + d) * 1e-9
    assert largest(w - lr * total / (n + d) - exact) >= 1e-2


# ---------------------------------------------------------------------------------------------
# many steps: lem:comp-error-convex-gd and what is concluded from it
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_as_many_layers_as_steps_suffice(steps):
    """The text stacks L + 1 layers for L steps. With a residual stream L do."""
    options = {"dim": 2, "samples": 3, "bound": 1.0, "w_bound": 2.0, "eps": 1e-8}
    em = ice.paper.GradientDescent(
        "squared", steps, 0.5, unrolled=True, backend="literal", **options
    )
    generator = torch.Generator().manual_seed(2)
    attending = [k for k in em.network.layers if isinstance(k, ice.heads.SoftmaxAttention)]
    assert len(attending) == em.plan.layers == steps
    assert_certified(em, *drawn(generator, 3, 2), eps=1e-8)


def test_errors_of_two_steps_exceed_two_eps_in_the_sup_norm():
    """The text concludes ||.||_inf <= t eps from a lemma on 2-norms and ||.||_inf <= ||.||_2. A
    step is non-expansive in the 2-norm only. Squared loss on one sample with iteration matrix
    I - eta x x' = [[s, s], [s, -s]], s = 1/sqrt 2, eta = 2/L, and errors of .01 in each entry:
    .0241 > .02 after two steps.
    """
    s, lr, eps = 1 / math.sqrt(2), 0.5, 0.01
    wanted = torch.tensor([[s, s], [s, -s]], dtype=F64)
    values, vectors = torch.linalg.eigh((torch.eye(2, dtype=F64) - wanted) / lr)
    x = vectors[:, -1:].T * values[-1].sqrt()
    gram = x.T @ x
    matrix = torch.eye(2, dtype=F64) - lr * gram
    assert largest(matrix - wanted) <= 8 * UNIT
    assert float(values[-1]) == pytest.approx(2 / lr)  # eta = 2/L, the lemma's limit
    assert float(values[0]) >= -8 * UNIT  # convex

    y, start = tensors([0.3], [0.2, -0.1])
    errors = torch.full((2, 2), eps, dtype=F64)
    gaps = printed.perturbed_descent(lambda w: w - lr * ((x @ w - y) @ x), start, errors)
    sup = gaps.abs().amax(-1)
    assert float(sup[0]) <= eps * (1 + 1e-12)
    assert float(sup[1]) == pytest.approx(0.0241, abs=5e-5)
    assert float(sup[1]) > 2 * eps

    schedule = Schedule.of("constant", 2, lr, (0.0, 2 / lr))
    reach = sum(schedule.amplification((0.0, 2 / lr), quadratic=True))
    assert float(gaps[1].norm()) <= reach * float(errors[0].norm())
    assert reach == pytest.approx(2, rel=1e-5)
    em = ice.paper.GradientDescent(
        "squared", 2, lr, dim=2, samples=1, bound=2.0, hessian=(0.0, 2 / lr), eps=0.05,
        regime="hard", backend="literal",
    )  # fmt: skip
    measured = largest(em(x, y, start) - em.reference(x, y, start))
    assert 0 < measured <= em.certificate.error <= 0.05


def geometric(rho, t):
    """(1 - rho^t)/(1 - rho), and t where rho = 1."""
    return float(t) if rho == 1 else (1 - rho**t) / (1 - rho)


# l', and inf and sup of l''.
CONVEX = {
    "squared": (lambda z: z, 1.0, 1.0),
    "logistic": (lambda z: torch.sigmoid(z) - 0.5, 0.0, 0.25),
    "huber": (lambda z: z.clamp(-1, 1), 0.0, 1.0),
    "tanh": (torch.tanh, 0.0, 1.0),
}


@pytest.mark.parametrize("loss", CONVEX)
def test_two_norm_bound_holds_on_random_convex_instances(loss):
    """||err_t||_2 <= eps2 (1 - rho^t)/(1 - rho), rho = max |1 - eta lambda|, and t eps2 where
    rho = 1. Errors point at random, along an eigenvector, or along the gap they widen.
    """
    slope, least, most = CONVEX[loss]
    generator = torch.Generator().manual_seed(3)
    steps, closest = 12, 0.0
    for trial in range(150):
        d, n = (int(torch.randint(1, k, (), generator=generator)) for k in (5, 9))
        l2 = float(uniform(generator, 0, 1)) * (trial % 2)
        x, y, start = normal(generator, n, d), normal(generator, n), normal(generator, d)
        eigenvalues, vectors = torch.linalg.eigh(x.T @ x / n)
        low = least * max(float(eigenvalues[0]), 0.0) + l2
        high = most * float(eigenvalues[-1]) + l2
        lr = float(uniform(generator, 0.1, 2)) / high  # eta <= 2/L
        rho = max(abs(1 - lr * low), abs(1 - lr * high))
        eps2 = 0.1

        def step(w, x=x, y=y, n=n, lr=lr, l2=l2):
            return w - lr * (slope(x @ w - y) @ x / n + l2 * w)

        aligned = vectors[:, -1].expand(steps, d).clone()
        if 1 - lr * high < 0:
            aligned[::2] *= -1
        exact = off = start
        for t, noise in enumerate(normal(generator, steps, d)):
            gap = step(off) - step(exact)
            along = gap if trial % 3 == 0 and float(gap.norm()) > 0 else noise
            along = aligned[t] if trial % 3 == 1 else along
            exact, off = step(exact), step(off) + eps2 * along / along.norm()
            bound = eps2 * geometric(rho, t + 1)
            seen = float((off - exact).norm())
            assert seen <= bound * (1 + 1e-12), f"{loss}: {seen} > {bound} at t={t + 1}"
            if t + 1 == steps:
                closest = max(closest, seen / bound)
        reach = Schedule.of("constant", steps, lr, (low, high)).amplification(
            (low, high), quadratic=False
        )
        assert sum(reach) == pytest.approx(geometric(rho, steps), rel=1e-9)
    assert closest > 0.9  # the bound is attained, or nearly


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_emulated_descent_holds_its_two_norm_certificate(loss):
    """With a table as coarse as the paper's, so that the error is visible: one step is off by
    eta sigma_max(X)/sqrt n sup|A - f| in the 2-norm, t steps by what the schedule says.
    """
    generator = torch.Generator().manual_seed(4)
    steps, d, n, eta = 5, 2, 4, 0.4
    it = ice.paper.ResidualMap(
        ice.expressions.loss_named(loss).derivative,
        dim=d,
        samples=n,
        w_bound=3.0,
        eps=0.2,
        regime="hard",
    ).interpolant
    em = ice.paper.GradientDescent(
        loss, steps, eta, dim=d, samples=n, w_bound=3.0, eps=None, regime="hard", interpolant=it,
        backend="literal",
    )  # fmt: skip
    seen = 0.0
    for _ in range(20):
        x, y, w = drawn(generator, n, d)
        one = em.step(x, y, w) - em.step.reference(x, y, w)
        spectral = float(torch.linalg.matrix_norm(x, 2)) / math.sqrt(n)
        assert float(one.norm()) <= eta * spectral * it.error + 1e-12
        off = float((em(x, y, w) - em.reference(x, y, w)).norm())
        assert off <= em.certify(x, y).error <= em.certificate.error * (1 + 1e-9)
        seen = max(seen, off)
    assert seen > 1e-3


def test_iterates_that_leave_the_grid_are_refused():
    """The grid must cover every iterate's residuals, which the text does not ask for. A step size
    past 2/L drives them out; iceform raises instead of reading past the end of the table.
    """
    x, y, w = tensors([[1.0]], [0.0], [1.0])
    em = ice.paper.GradientDescent("squared", 4, 2.5, dim=1, samples=1, eps=None)
    with pytest.raises(ice.errors.BoundError, match="smaller steps"):
        em(x, y, w)
    fine = ice.paper.GradientDescent("squared", 4, 1.5, dim=1, samples=1, eps=1e-9)
    assert_certified(fine, x, y, w)


@pytest.mark.parametrize(("curvature", "rate"), [(-1.0, 1.0), (1.0, 3.0)])
def test_errors_grow_where_the_lemma_is_not_about_the_loss_or_the_step(curvature, rate):
    """Example 2 asks neither for convexity nor for eta <= 2/L; lem:comp-error-convex-gd does. With
    l = -z^2/2 and eta = 1, or z^2/2 and eta = 3, a step doubles distances, and ten errors of .001
    add up to 1.023, where t eps is .01. iceform's certificate has that factor.
    """
    eps, steps = 1e-3, 10
    exact = emulated = 0.3
    for t in range(steps):
        exact -= rate * curvature * exact
        sign = math.copysign(1.0, 1 - rate * curvature) ** (steps - t)  # the worst direction
        emulated += -rate * curvature * emulated + sign * eps
    assert abs(emulated - exact) == pytest.approx(eps * (2**steps - 1))
    assert abs(emulated - exact) > 100 * steps * eps
    assert_on_page(f"the distance after ten steps is {abs(emulated - exact):.3f}, where")
    assert_on_page(f"where $t\\epsilon = {f'{steps * eps:.2f}'[1:]}$. With the convex")
    assert_on_page(f"by a factor of {2**steps - 1} in both cases")

    def certified(steps):
        em = ice.paper.GradientDescent(
            lambda z: curvature * z, steps, rate, dim=1, samples=1, eps=None, w_bound=1.0
        )
        return em.certificate.terms["interpolation"]

    assert certified(steps) / certified(1) == pytest.approx(2**steps - 1, rel=1e-6)


# ---------------------------------------------------------------------------------------------
# one layer for least squares: thm:attn_sim_lr, thm:attn_sim_rr. On all data no frozen layer does
# it; on data of bounded condition one head does, with a grid of data sets; iceform takes passes.
# ---------------------------------------------------------------------------------------------

CORNERS = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=3)), dtype=F64)[:, None]


def random_machine(generator):
    """A random affine lift of one token (x, y, w) to six, and a random two-headed layer on it."""
    lift = ice.heads.Lift(
        normal(generator, 3, 4, 3), normal(generator, 3, 1, 6), normal(generator, 6, 4)
    )
    shapes = ((2, 3, 4), (2, 3, 4), (2, 1, 4), (2, 6, 1))
    return lift, ice.heads.SoftmaxAttention(*(normal(generator, *s) for s in shapes))


def test_one_frozen_layer_cannot_solve_least_squares_on_all_data():
    """thm:attn_sim_lr claims one layer for any data set. For n = d = 1 the solution is y/x, which
    is unbounded on |x|, |y| <= 1; a frozen layer outputs convex combinations of its values, which
    are bounded there. So every layer fails on some data, here by 1 or more.
    """
    generator = torch.Generator().manual_seed(5)
    for _ in range(50):
        lift, layer = random_machine(generator)
        reach = printed.frozen_reach(lift, layer, CORNERS)
        prompts = uniform(generator, -1, 1, 200, 1, 3)
        assert float(layer(lift(prompts)).abs().max()) <= reach * (1 + 1e-12)
        data = torch.tensor([[1 / (reach + 1), 1.0, 0.0]], dtype=F64)
        solution = float(data[0, 1] / data[0, 0])
        assert abs(float(layer(lift(data))) - solution) >= 1 - 1e-9 * reach


def one_frozen_head(table):
    """A lift of (x, y, w) and one head whose output is y times the table's look-up of x.

    Tokens: one for every grid point of x, with the value v_k y, and the query. The solution is
    linear in y, so y needs no grid.
    """
    slopes, biases = table.keys.slopes, table.keys.biases
    centre = (table.low + table.high) / 2
    grid = table.tokens
    key, value, query = range(3)
    maps = torch.zeros(2, 3, 3, dtype=F64)
    maps[0, key, 0] = maps[1, value, 1] = 1.0
    rows = torch.zeros(2, 1, grid + 1, dtype=F64)
    rows[0, 0, :grid], rows[1, 0, :grid] = slopes, table.values
    constant = torch.zeros(grid + 1, 3, dtype=F64)
    constant[:grid, key] = biases - slopes * centre
    constant[grid, key], constant[grid, query] = -1e6, 1.0  # the query is no key
    one = torch.eye(3, dtype=F64)[:, None, None]
    readout = torch.zeros(1, grid + 1, 1, dtype=F64)
    readout[0, grid] = 1.0
    return ice.heads.Lift(maps, rows, constant), ice.heads.SoftmaxAttention(
        one[key], one[query], one[value], readout
    )


@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_one_frozen_head_solves_least_squares_where_the_data_is_conditioned(penalty):
    """The argument above needs data without a bound on the condition. On x in [1/4, 1], |y| <= 1
    (condition 16) one head with frozen weights does it: keys are a grid over x, values y times the
    fitted solution. Ridge needs no lower bound on |x|.
    """
    low = 0.25 if penalty == 0 else -1.0
    table = ice.Interpolant.fit(lambda z: z / (z * z + penalty) if penalty else 1 / z, low, 1.0,
                                eps=1e-9)  # fmt: skip
    assert table.kind == "proven"
    lift, layer = one_frozen_head(table)
    generator = torch.Generator().manual_seed(4)
    x, y = uniform(generator, low, 1, 2000), uniform(generator, -1, 1, 2000)
    x[:4], y[:4] = torch.tensor([low, low, 1, 1]), torch.tensor([1.0, -1, 1, -1])
    solution = x * y / (x * x + penalty)
    found = layer(lift(torch.stack([x, y, uniform(generator, -1, 1, 2000)], 1)[:, None]))[:, 0, 0]
    # A logit is a sum of parts below 2 max|slope|, rounded thrice: 6 units of max|slope|. Moved by
    # delta, a softmax moves what it reads by at most delta (max v - min v); the sum adds the rest.
    rounding = 16 * UNIT * float(table.keys.slopes.abs().max()) * float(table.values.abs().max())
    assert largest(found - solution) <= table.error + rounding <= 2e-9
    if not penalty:
        assert table.error <= 1e-10
        assert_on_page(
            f"$x \\in [1/4, 1]$ and $|y| \\le 1$ (condition 16) {table.tokens} grid tokens and one "
            "query solve it to 1e-10, proven"
        )


def test_least_squares_holds_where_the_data_is_conditioned_and_refuses_elsewhere():
    """iceform asks for the condition number, takes passes for it, and refuses other data. One of
    its passes is a gradient step, and far from the solution.
    """
    em = ice.paper.LeastSquares(dim=1, samples=1, condition=16.0, radius=4.0, eps=1e-8)
    x, y, start = tensors([[[1.0]], [[0.5]], [[0.25]]], [[1.0]] * 3, [[0.0]] * 3)
    solution = 1 / x[:, 0]
    assert_certified(em, x, y, exact=solution, eps=1e-8)
    assert em.passes > 1
    assert largest(em.descent.step(x, y, start) - solution) >= 1
    with pytest.raises(ice.errors.BoundError, match="eigenvalues"):
        em(*tensors([[0.1]], [1.0]))


def test_least_squares_is_not_strongly_convex_without_full_rank():
    """The proofs of thm:attn_sim_lr and thm:attn_sim_rr rest on cor:gd-smooth-strongly-convex and
    say "convex and smooth". For x = (1, 0), y = 1 the Hessian is diag(1, 0): gradient descent from
    two starts ends at two minimisers, and so with ridge at lambda = 0. Ridge with lambda > 0 has
    one. iceform refuses the former.
    """
    x, y = tensors([[1.0, 0.0]], [1.0])
    starts = tensors([0.0, 0.5], [0.0, -0.5])

    def limit(w, penalty):
        for _ in range(2000):
            w = w - 0.5 * ((x @ w - y) @ x + penalty * w)
        return w

    assert float(torch.linalg.eigvalsh(x.T @ x)[0]) == 0.0
    ends = [limit(w, 0.0) for w in starts]
    assert [float(w[1]) for w in ends] == [0.5, -0.5]
    assert all(float((x @ w - y).abs()) <= 1e-12 for w in ends)
    once, again = (limit(w, 0.1) for w in starts)
    assert largest(once - again) <= 1e-12
    em = ice.paper.LeastSquares(dim=2, samples=1, condition=50.0, radius=4.0, eps=1e-6)
    with pytest.raises(ice.errors.BoundError, match="eigenvalues"):
        em(x, y)


def test_weights_chosen_for_one_data_set_say_nothing():
    """Read with weights that may depend on the data set, the statement is empty: a layer whose
    values are the constant w* has no error on its own data set and ignores its prompt.
    """
    w_star = torch.tensor([[0.5, -2.0]], dtype=F64)
    nothing = torch.zeros(1, 2, 5, dtype=F64), torch.zeros(1, 3, 3, dtype=F64)
    lift = ice.heads.Lift(*nothing, constant=w_star.expand(3, 2))
    eye, zero = torch.eye(2, dtype=F64)[None], torch.zeros(1, 1, 2, dtype=F64)
    layer = ice.heads.SoftmaxAttention(zero, zero, eye, torch.full((1, 3, 1), 1 / 3, dtype=F64))
    generator = torch.Generator().manual_seed(6)
    x = normal(generator, 3, 2)
    for y, off in ((x @ w_star[0], 0.0), (x @ (w_star[0] + 1), 1.0)):
        prompt = torch.cat([x, y[:, None], torch.zeros(3, 2, dtype=F64)], 1)
        solution = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
        seen = largest(layer(lift(prompt))[0] - solution)
        assert seen == pytest.approx(off, abs=1e-9)


KAPPA, TARGET, DISTANCE = 50.0, 1e-6, 1.52


def conditioned(generator, n, eigenvalues, w_star):
    """X with X'X/n of the given eigenvalues, and y = X w*."""
    d = len(eigenvalues)
    left = torch.linalg.qr(normal(generator, n, d))[0]
    right = torch.linalg.qr(normal(generator, d, d))[0]
    x = math.sqrt(n) * left @ torch.diag(eigenvalues.sqrt()) @ right
    return x, x @ w_star


def layer_counts():
    """kappa ln(2 R/eps) at 1/L, (kappa + 1)/2 ln(2 R/eps) at 2/(alpha + L), and Chebyshev's."""
    ratio = 2 * DISTANCE / TARGET
    return {
        "1/L": math.ceil(KAPPA * math.log(ratio)),
        "2/(alpha+L)": math.ceil((KAPPA + 1) / 2 * math.log(ratio)),
        "chebyshev": math.ceil(math.sqrt(KAPPA) / 2 * math.log(2 * ratio)),
    }


def test_layer_counts_for_least_squares_at_kappa_fifty():
    """One step a layer. For kappa = 50, eps = 1e-6 and ||w*|| = 1.52 the counts are 747 at 1/L, 381
    at 2/(alpha + L) and 56 with Chebyshev steps; iceform takes no more.
    """
    counts = layer_counts()
    assert counts["1/L"] == 747
    assert counts["2/(alpha+L)"] == 381
    assert counts["chebyshev"] == 56
    reduction = TARGET / 2 / DISTANCE
    assert steps_needed("constant", 1 / KAPPA, 1.0, reduction) <= counts["2/(alpha+L)"]
    assert steps_needed("chebyshev", 1 / KAPPA, 1.0, reduction) <= counts["chebyshev"]


@pytest.mark.parametrize("schedule", ["1/L", "2/(alpha+L)", "chebyshev"])
def test_emulated_least_squares_reaches_its_target_with_these_counts(schedule):
    """The passes are run, and after one of them the solution is still far away."""
    d, n = 3, 8
    generator = torch.Generator().manual_seed(7)
    top = 1.0
    spectrum = torch.tensor([top / KAPPA, 0.3, top], dtype=F64)
    w_star = torch.tensor([2.0, -1.0, 2.0], dtype=F64) * DISTANCE / 3
    x, y = conditioned(generator, n, spectrum, w_star)
    count = layer_counts()[schedule]
    rate = {"1/L": 1 / top, "2/(alpha+L)": 2 / (top + top / KAPPA), "chebyshev": None}[schedule]
    name = "constant" if rate else "chebyshev"
    # Iterates stay within ||w*|| + growth ||w0 - w*|| of the origin.
    planned = Schedule.of(name, count, rate, (top / KAPPA, top))
    widest = DISTANCE * (1 + planned.growth((top / KAPPA, top)))
    em = ice.paper.GradientDescent(
        "squared", count, rate, dim=d, samples=n, bound=3.0, w_norm=widest,
        w_bound=widest, schedule=name, hessian=(top / KAPPA, top), eps=TARGET / 2,
    )  # fmt: skip
    path = em.trajectory(x, y, torch.zeros(d, dtype=F64))
    distances = (path - w_star).norm(dim=-1)
    assert float(distances[-1]) <= TARGET
    assert float(distances[1]) > 1e5 * TARGET


def test_least_squares_takes_at_most_sixty_passes_at_kappa_fifty():
    """The construction itself, its certificate covering convergence as well."""
    generator = torch.Generator().manual_seed(8)
    spectrum = torch.tensor([1 / KAPPA, 0.1, 1.0], dtype=F64)
    w_star = torch.tensor([1.0, 1.0, -0.5], dtype=F64)
    x, y = conditioned(generator, 8, spectrum, w_star)
    em = ice.paper.LeastSquares(
        dim=3, samples=8, condition=KAPPA * (1 + 1e-9), largest=1 + 1e-12, bound=3.0,
        y_bound=6.0, radius=DISTANCE, eps=TARGET,
    )  # fmt: skip
    assert_certified(em, x, y, exact=w_star, eps=TARGET)
    assert 1 < em.passes <= 60
