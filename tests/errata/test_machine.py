"""One frozen module for many algorithms: what thm:attn_sim_stats_methods leaves out."""

import pytest
import torch

import iceform as ice
from iceform.paper.library import HeadPrompts, KernelPrompts, PromptLibrary
from tests.errata import printed
from tests.errata.common import F64, assert_on_page, largest, short, uniform


def target(seed, scale, n=3, d=2):
    """Tokens (n, d) in [-1, 1] and a head with weights in [-scale, scale]."""
    generator = torch.Generator().manual_seed(seed)
    x, *mats = (uniform(generator, -1, 1, n, d) for _ in range(4))
    return x, [scale * m for m in mats]


def assert_runs(machine, x, mats):
    result = machine.run(HeadPrompts(*mats), x)
    exact = printed.head(x.T, *mats).T
    worst, allowed = largest(result.value - exact), within(result, exact)
    assert worst <= allowed, f"{worst:.3e} > {allowed:.3e}"
    return result


def within(result, reference):
    """What is certified, and the rounding of a reference that is float64's itself."""
    return result.certificate.error + 16 * torch.finfo(F64).eps * float(reference.abs().max())


def test_the_corollary_s_prompt_is_not_the_one_its_network_reads():
    """W^a is to be the W of def:input_attn, along the embedding; the network is that of
    thm:attn_sim_attn, whose proof reads rows. For d = 2, n = d_h = 3: 38 rows where 8 are read, and
    a network that takes the first 8 of them emulates something else.
    """
    x, mats = target(1, 1.0)
    d, n, d_h = 2, 3, 3
    along = torch.cat([x.T, printed.ramps(torch.cat([m.flatten() for m in mats]), n)])
    rows = torch.cat([x.T, *(m.T for m in mats)])
    assert (len(along), len(rows)) == (d + 6 * d * d_h, 4 * d) == (38, 8)
    nodes = torch.linspace(-2, 2, 801, dtype=F64)
    off = []
    for prompt in (along, rows):
        layer = sum(
            printed.row_heads(x.T, tuple(mats), nodes, 5e5, factor=2.0, readout=True, prompt=prompt)
        )
        off.append(largest(layer - torch.cat([m @ x.T for m in mats])))
    assert off[0] > 0.5
    assert off[1] <= 0.0025 + 1e-9
    machine = PromptLibrary(d, n, algorithms=[HeadPrompts(*mats)])
    assert_runs(machine, x, mats)


def test_a_common_number_of_grid_points_is_not_enough():
    """The proof takes P_m = max P over the library and the rest as given. The grid [-d B^2, d B^2]
    and beta depend on the algorithm as well: a grid made for weights up to 1 answers at most 2,
    silently, where the second algorithm's products reach 5.2.
    """
    nodes = torch.linspace(-2, 2, 801, dtype=F64)  # P_m, but the range of the first algorithm
    beta = 12 / (4 / 800) ** 2
    errors, reached = [], []
    for scale in (1.0, 4.0):
        x, mats = target(1, scale)
        layer = sum(printed.row_heads(x.T, tuple(mats), nodes, beta, factor=2.0, readout=True))
        assert bool(layer.isfinite().all())
        exact = torch.cat([m @ x.T for m in mats])
        errors.append(largest(layer - exact))
        reached.append(float(exact.abs().max()))
    assert_on_page(f"another algorithm's product is {short(reached[1])}")
    assert errors[0] <= 0.0025 + 1e-9
    assert errors[1] == pytest.approx(reached[1] - 2, abs=1e-6)  # saturated

    heads = [target(1, scale) for scale in (1.0, 4.0)]
    both = [HeadPrompts(*mats) for _, mats in heads]
    machine = PromptLibrary(2, 3, algorithms=both)
    digests = {assert_runs(machine, x, mats).digest for x, mats in heads}
    assert digests == {machine.digest}


def test_products_beyond_the_grid_are_refused_not_saturated():
    """Out of range the look-up returns an end of the grid, without a sign that it did."""
    x, mats = target(1, 4.0)
    nodes = torch.linspace(-2, 2, 801, dtype=F64)
    layer = sum(printed.row_heads(x.T, tuple(mats), nodes, 5e5, factor=2.0, readout=True))
    assert float(layer.abs().max()) <= 2 + 1e-12

    small = PromptLibrary(2, 3, algorithms=[HeadPrompts(*target(1, 1.0)[1])])
    with pytest.raises(ice.errors.ProgramError, match="does not fit this network"):
        small.run(HeadPrompts(*mats), x)
    head = ice.paper.AttentionHead(2, 3, 3, 3, weight_bound=4.0, reach=2.0, eps=None)
    with pytest.raises(ice.errors.BoundError, match="beyond the grid's range 2"):
        head(x, *mats)
    with pytest.raises(ice.errors.BoundError):
        ice.paper.AttentionHead(2, 3, 3, 3, eps=None)(x, *mats)


@pytest.mark.parametrize("what", ["tokens", "dimension"])
def test_data_larger_than_the_machine_is_refused(what):
    x, mats = target(1, 1.0)
    machine = PromptLibrary(2, 3, algorithms=[HeadPrompts(*mats)])
    longer, wide = target(2, 1.0, n=4), target(2, 1.0, d=3)
    data, weights = (longer[0], mats) if what == "tokens" else wide
    with pytest.raises(ice.errors.ProgramError, match="tokens" if what == "tokens" else "features"):
        machine.run(HeadPrompts(*weights), data)
    assert_runs(machine, x, mats)


def test_padding_to_a_common_size_needs_a_mask():
    """The proof pads "to the same size". Zero features are harmless, but zero tokens are keys of
    logit 0 and value 0: with 3 tokens padded to 12 they take most of the attention.
    """
    x, mats = target(1, 1.0)
    exact = printed.head(x.T, *mats)
    features = printed.head(
        torch.nn.functional.pad(x, (0, 4)).T, *(torch.nn.functional.pad(m, (0, 4)) for m in mats)
    )
    assert largest(features - exact) <= 1e-14
    tokens = printed.head(torch.nn.functional.pad(x, (0, 0, 0, 9)).T, *mats)[:, :3]
    off, entries = largest(tokens - exact), largest(exact)
    assert off > 0.5 * entries
    assert_on_page(f"are off by {short(off)}, where the output's largest entry is {entries:.2f}")

    bigger = HeadPrompts(*target(2, 1.1, n=12, d=6)[1])
    machine = PromptLibrary(6, 12, algorithms=[bigger])
    padded = machine.padded(HeadPrompts(*mats).target(x, None))
    assert padded.tokens.shape[0] == 12
    logits = (padded.tokens @ padded.w_q.mT) @ (padded.tokens @ padded.w_k.mT).mT
    weights = torch.softmax(logits, -1)[:3]
    assert float(weights[:, 3:].sum(-1).max()) <= torch.finfo(F64).eps
    assert_runs(machine, x, mats)


def test_nearest_neighbours_need_the_squared_norms_as_a_data_row():
    """Nadaraya-Watson and 1-NN have logits -||q - x_i||^2, and ||x_i||^2 is not bilinear in the
    tokens. With q.x_i alone the farther of two samples on a ray wins.
    """
    x = torch.tensor([[0.1, 0.1], [0.9, 0.9]], dtype=F64)
    y = torch.tensor([-1.0, 1.0], dtype=F64)
    query = torch.tensor([0.2, 0.2], dtype=F64)
    bilinear = y @ torch.softmax(1e4 * x @ query, 0)
    squared = y @ torch.softmax(1e4 * (2 * x @ query - x.square().sum(1)), 0)
    assert float(bilinear) == 1.0
    assert float(squared) == -1.0

    program = KernelPrompts(12.5)
    machine = PromptLibrary(2, 2, algorithms=[program])
    result = machine.run(program, x, y)
    exact = program.reference(x, y)
    assert largest(result.value - exact) <= within(result, exact)
    assert float(result.predict(query[None])[0]) < -0.9
