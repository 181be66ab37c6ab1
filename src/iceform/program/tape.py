r"""What one run in float64 is off by, by adjoints: first order exactly, the rest bounded.

A run is a list of steps :math:`v_i = f_i(v_p)`, p the steps it reads. Computed were
:math:`\tilde v_i = f_i(\tilde v_p) + \delta_i`, with :math:`|\delta_i| \le D_i` known, its
rounding. With :math:`e_i = \tilde v_i - v_i` and J the Jacobian *at the computed values*,

.. math:: e_i = \delta_i + J_i e_p - r_i, \qquad |r_i| \le R_i(E_p) \text{ while } |e_p| \le E_p,

r the Taylor remainder. For any linear functional c of the last step and *any* numbers
:math:`\hat\lambda`,

.. math:: c' e = \sum_i \hat\lambda_i' (\delta_i - r_i) + \sum_p \eta_p' e_p,

where :math:`\eta` is what :math:`\hat\lambda` misses the adjoint equations by. The reverse pass in
float64 misses them by its rounding alone,
:math:`|\eta_p| \le \gamma \sum_i |J_i|' |\hat\lambda_i|`. So

.. math:: |c' e| \le \sum_i |\hat\lambda_i|' (D_i + R_i(E_p) + \gamma |J_i| E_p).

The radii E enter in second order alone, so rough ones will mostly do: :math:`E_i = |J_i| E_p +
R_i(E_p) + D_i`. These multiply absolute values and grow with depth. At chosen steps, the *states*,
they are therefore replaced by the bound above, one functional for every entry. It is carried back
to the last state that was made sharp, whose E counts there, or to the beginning. A state is made
sharp where the remainders of the steps after it would otherwise show.

An operation's rounding D, derivative J and remainder R are in its row of the table
(:mod:`~iceform.program.operations`); J is pulled back by torch's vjp. All arithmetic on bounds is
on nonnegative numbers, and a factor 1 + 2^{-30} after every step exceeds its rounding.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic.units import OUTWARD_MANY, SAFE_MINIMUM, UNIT
from iceform.program.node import Node

_SHARES = (math.inf, 2.0, 2.0**-6, 0.0)  # of own errors, that remainders may be: tried in turn
_CHUNK = {"cpu": 2**19, "cuda": 2**27}  # numbers of one adjoint at once: in cache, or in memory


def _outward(bound: Tensor) -> Tensor:
    """A bound with what computing it rounds; what is no number bounds nothing."""
    return (bound * OUTWARD_MANY).nan_to_num(nan=math.inf, posinf=math.inf)


def _rows_back(back: Callable[[Tensor], Sequence[Tensor]], adjoints: Tensor) -> Sequence[Tensor]:
    """Every row one step back; an operation without a rule for rows is only slower, and warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found: Sequence[Tensor] = torch.func.vmap(back)(adjoints)
        return found


def _summed(own: Tensor, adjoints: Tensor) -> Tensor | float:
    """Sums of own x |adjoint|, one a row; an adjoint that is 0 hides even infinity."""
    if not own.any():
        return 0.0
    if own.isfinite().all():
        found: Tensor = adjoints.reshape(len(adjoints), -1) @ own.expand(
            adjoints.shape[1:]
        ).reshape(-1)
        return found
    hidden = torch.where(adjoints == 0, 0.0, own * adjoints)
    return hidden.reshape(len(adjoints), -1).sum(1)


@dataclass(eq=False)
class _Step:
    node: Node | None
    reads: tuple[int, ...]
    value: Tensor
    own: Tensor  # D
    state: bool
    back: Callable[[Tensor], Sequence[Tensor]] | None = None
    radius: Tensor = field(default_factory=lambda: torch.zeros(()))  # E
    rest: Tensor = field(default_factory=lambda: torch.zeros(()))  # R + gamma |J| E

    @property
    def is_exact(self) -> bool:
        """Whether it is a number that was given, and is what it should be."""
        return self.node is None and not bool(self.own.any())


class Tape:
    """The steps of one run in float64.

    >>> tape = Tape()
    >>> x = tape.leaf(torch.tensor([0.5, 1.5]))
    >>> tape.bound(tape.apply("mul", x, x)) < 2.0**-51
    tensor([True, True])

    Parameters
    ----------
    device
        Where the numbers are, and where bounds are computed.
    run
        What rows of the table are shown as the run: how many samples there are, for those that ask.
    """

    def __init__(self, device: torch.device | None = None, run: Any = None) -> None:
        self.device, self.run = torch.device("cpu") if device is None else device, run
        self._steps: list[_Step] = []

    def leaf(self, value: Tensor, error: Tensor | float = 0.0) -> int:
        """A given number, off by at most ``error``."""
        value = value.detach().double().to(self.device)
        own = torch.as_tensor(error, dtype=torch.float64, device=self.device).expand(value.shape)
        self._steps.append(_Step(None, (), value, own, False, radius=own))
        return len(self._steps) - 1

    def apply(self, op: str | Node, *reads: int, attr: Any = None, state: bool = False) -> int:
        """A step, or the steps of an operation that is made of others; the number of the last.

        Parameters
        ----------
        op
            The name of an operation, or a node of a program.
        reads
            The steps that it reads.
        attr
            The operation's attribute, where its name alone is given.
        state
            Whether what comes after needs sharp radii here.
        """
        node = Node(op, (), True, None, attr) if isinstance(op, str) else op
        row = node.operation
        last: int | None = row.expand(self.run, node, self.apply, *reads)
        if last is not None:
            return last
        read = [self._steps[i] for i in reads]
        given = tuple(s.value for s in read)
        out = row.accurate(self.run, node, *given).detach()
        node = row.at(node, *given)
        back = None  # of constants: nothing flows back
        if not all(s.is_exact for s in read):
            back = torch.func.vjp(row.tangent(self.run, node, *given), *given)[1]
        own = torch.zeros_like(out)
        if not row.exact:
            rounding = torch.as_tensor(row.rounding(node, out, *given)).to(out)
            own = _outward(rounding + SAFE_MINIMUM).expand(out.shape)
        self._steps.append(_Step(node, reads, out, own, state, back))
        return len(self._steps) - 1

    def value(self, index: int) -> Tensor:
        """What a step computed."""
        return self._steps[index].value

    # ------------------------------------------------------------------------------------- bounds

    def bound(self, index: int, functionals: Tensor | None = None, enough: float = 0.0) -> Tensor:
        """Bounds of |computed - exact|: of every entry of a step, or of linear functionals of it.

        Parameters
        ----------
        index
            The step.
        functionals
            Shape (k, ...), with the step's shape; then the bounds have shape (k,).
        enough
            Bounds of at most this need not be sharper.
        """
        shape = self._steps[index].value.shape
        # E by products of absolute values: good enough while what rests on it is small. Sharper
        # ones where it is not, and more of them until the second order is small.
        found = torch.full((), math.inf, dtype=torch.float64, device=self.device)
        for share in _SHARES:
            self._settle(index, share)
            radius = self._steps[index].radius
            if functionals is None and bool((radius <= enough).all()):
                return radius
            if share and not bool(radius.isfinite().all()):
                continue
            total, second = self._totals(index, functionals)
            found = torch.minimum(found, total)
            small = (second <= tuning.TAPE_SMALL * total) | (found <= enough)
            if bool((total.isfinite() & small).all()):
                break
        return found.reshape(shape) if functionals is None else found

    def _totals(
        self, index: int, functionals: Tensor | None, since: int | None = None
    ) -> tuple[Tensor, Tensor]:
        shape = self._steps[index].value.shape
        count = shape.numel() if functionals is None else len(functionals)
        first_step = 0 if since is None else since + 1
        widest = max(s.value.numel() for s in self._steps[first_step : index + 1])
        size = max(1, _CHUNK.get(self.device.type, _CHUNK["cpu"]) // max(1, widest))
        parts = []
        for low in range(0, count, size):
            high = min(low + size, count)
            if functionals is None:
                rows = torch.zeros(high - low, shape.numel(), dtype=torch.float64)
                rows[torch.arange(high - low), torch.arange(low, high)] = 1.0
                rows = rows.reshape(high - low, *shape).to(self.device)
            else:
                rows = functionals[low:high].double().to(self.device)
            parts.append(self._reverse(index, rows, since))
        first, second = (torch.cat([p[i] for p in parts]) for i in (0, 1))
        return _outward(first + second), second

    def _reverse(self, index: int, rows: Tensor, since: int | None) -> tuple[Tensor, Tensor]:
        """Sums of |adjoint| x (own error) and |adjoint| x (second order), for every row.

        With ``since``, no further back than to that step, whose radius counts.
        """
        adjoints: dict[int, Tensor] = {index: rows}
        first, second = rows.new_zeros(2, len(rows)).unbind()
        for i in range(index, -1, -1):
            adjoint = adjoints.pop(i, None)
            if adjoint is None:
                continue
            step = self._steps[i]
            size = adjoint.abs()
            if since is not None and i <= since:
                first += _summed(step.radius, size)
                continue
            first += _summed(step.own, size)
            second += _summed(step.rest, size)
            if step.back is None:
                continue
            for read, part in zip(step.reads, _rows_back(step.back, adjoint), strict=True):
                if self._steps[read].back is not None or self._steps[read].own.any():
                    adjoints[read] = adjoints[read] + part if read in adjoints else part
        return first, second

    def _settle(self, index: int, share: float) -> None:
        """Radii and remainders of every step up to one.

        A state is made sharp where the remainders behind it, up to the next one, would be more
        than ``share`` of what these steps are off by.
        """
        states = [i for i, s in enumerate(self._steps[: index + 1]) if s.state]
        ends = [*states[1:], index]
        sharp: list[int] = []
        self._forward(0, states[0] if states else index)
        for at, until in zip(states, ends, strict=False):
            # Back to the last sharp state, which is cheap and mostly enough; then twice as far.
            since, tried = at, 0
            while since >= 0 and self._forward(at + 1, until) > share:
                since = max([i for i in sharp if at - i >= 2 * (at - since)], default=-1)
                since = since if share else -1
                step = self._steps[at]
                sharper = self._totals(at, None, since)[0].reshape(step.value.shape)
                step.radius, tried = torch.minimum(step.radius, sharper), tried + 1
            if tried:
                sharp.append(at)
                self._forward(at + 1, until)

    def _forward(self, first: int, last: int) -> float:
        """Radii and remainders of these steps; the latter as a share of what they are off by."""
        off, rest = 0.0, 0.0
        for step in self._steps[first : last + 1]:
            if step.node is None:
                continue
            self._carry(step, step.node)
            off, rest = off + float(step.own.sum()), rest + float(step.rest.sum())
        return rest / off if off else math.inf if rest else 0.0

    def _carry(self, step: _Step, node: Node) -> None:
        reads = [self._steps[j] for j in step.reads]
        values, radii = [s.value for s in reads], [s.radius for s in reads]
        found = node.operation.moved(self.run, node, step.value, values, radii)
        size = max(s.value.numel() for s in (step, *reads))
        rest = torch.as_tensor(found.rest, dtype=torch.float64, device=self.device)
        backward = 8 * (size + 64) * UNIT * found.first  # of the reverse pass, and of this one
        step.rest = _outward(rest + backward)
        step.radius = _outward(found.first + step.rest + step.own)
