"""What a prompt holds: the program byte for byte the same for all data, and data affinely."""

import torch

import iceform as ice
from iceform.heads import LookUpLayout, LookUps

F64 = torch.float64
N, D = 8, 3
DATA = {"key_x", "key_y", "value", "w"}  # features written for data; all others are the program's


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    of = torch.Generator().manual_seed(seed)
    return tuple(2 * torch.rand(*s, generator=of, dtype=F64) - 1 for s in ((N, D), (N,), (D,)))


def look_ups(*data: torch.Tensor) -> LookUps:
    return LookUps(LookUpLayout(D, N, 65), ice.Interpolant.fit(torch.tanh, -6, 6, 1e-3), *data)


def test_what_is_the_programs_is_the_same_for_all_data():
    one, other = (look_ups(*drawn(seed)) for seed in (0, 1))
    names = {name for name, _ in one.features.sizes}
    assert names > DATA
    for name in names - DATA:
        at = one.features[name]
        assert torch.equal(one.tokens[..., at], other.tokens[..., at]), name


def test_what_is_written_for_data_is_affine_in_each_of_them():
    """x, y and w one at a time: T((a + b) / 2) is half of T(a) + T(b)."""
    a, b = drawn(0), drawn(1)
    for k in range(3):
        ends = [tuple(end[k] if i == k else a[i] for i in range(3)) for end in (a, b)]
        middle = tuple((a[k] + b[k]) / 2 if i == k else a[i] for i in range(3))
        half = (look_ups(*ends[0]).tokens + look_ups(*ends[1]).tokens) / 2
        off = (look_ups(*middle).tokens - half).abs().max()
        assert off <= 1e-13 * half[half.abs() < 2.0**40].abs().max(), k


def test_a_compiled_program_is_written_alike_for_all_data():
    """Instructions, tables and registers; only the tokens of x and y hold data, as they are."""

    @ice.algorithm
    def descent(x, y, *, lr=0.5, steps=3):
        w = ice.zeros_like(x)
        for _ in ice.repeat(steps):
            w = w - lr * ice.mean(x * ((x * w).sum() - y))
        return w

    program = ice.compile(descent, dim=D, samples=N)
    computer = ice.Computer.for_programs([program])
    one, other = (computer.prompt(program, *drawn(seed)[:2]) for seed in (0, 1))
    changed = (one.tokens != other.tokens).any(-1).nonzero().flatten().tolist()
    assert {one.roles[i].split(",")[0] for i in changed} == {"x", "-y"}
    assert len(changed) == 2 * N
    x, y = drawn(0)[:2]
    halved = computer.prompt(program, x / 2, y / 2)
    blank = computer.prompt(program, 0 * x, 0 * y)
    torch.testing.assert_close(halved.tokens, (one.tokens + blank.tokens) / 2, rtol=0, atol=1e-15)
