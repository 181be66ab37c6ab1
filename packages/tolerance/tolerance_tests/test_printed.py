"""What the command prints of a bound is true to the last digit."""

import io
from contextlib import redirect_stdout

from iceform.certificates import Certificate
from iceform_tolerance import AttackRow as Compared
from iceform_tolerance import command as tolerance
from tests.attacks.printed import Said, assert_true


def kernels(c: Certificate) -> list[Said]:
    row = Compared("sdpa", "float32", "random", "1x1", 1, 1, 0, 0.0, c.error, 0.0)
    out = io.StringIO()
    with redirect_stdout(out):
        tolerance._print_rows([row], [None])
    shown = out.getvalue()
    (line,) = [line for line in shown.splitlines() if line.strip().startswith("float32")]
    return [Said(line.split()[2], c.error)]


def test_no_printed_bound_is_smaller_than_the_bound():
    assert assert_true(kernels, 40, seed=3) == 40
