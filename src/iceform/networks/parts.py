"""The tree of a network's pieces, by the names of the original's parts, and what makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from iceform.errors import ProgramError
from iceform.networks.pieces import Piece, PieceSettings

_CONSTANTS = "constants"
P = TypeVar("P", bound=Piece)


class Parts(nn.Module):
    """A place in the network's tree of pieces; numbered places are indexed."""

    def __getitem__(self, key: int | str) -> nn.Module:
        found = self._modules[str(key)]
        assert found is not None
        return found

    def place(self, path: str, piece: nn.Module) -> None:
        """Put a piece where its name says."""
        *way, last = path.split(".")
        at: nn.Module = self
        for step in way:
            if step not in at._modules:
                at.add_module(step, Parts())
            at = at.get_submodule(step)
        at.add_module(last, piece)


@dataclass(frozen=True, eq=False)
class Const:
    """A tensor that no input changes."""

    tensor: Tensor
    name: str = ""  # of the parameter, where it is one
    folded: bool = False


class Maker:
    """Makes pieces and constants where there are none yet: calls of one network share theirs.

    Parameters
    ----------
    parts
        The pieces so far, by name.
    settings
        Of every piece.
    strict
        Refuse maps that nothing here emulates.
    title
        The network's own name.
    """

    def __init__(self, parts: Parts, settings: PieceSettings, strict: bool, title: str) -> None:
        self.parts, self.settings, self.strict, self.title = parts, settings, strict, title
        self.left: dict[str, str] = {}
        self.frozen = False  # once set, no new piece may be made

    def piece(self, name: str, made: P) -> P:
        """The piece of that name: the one there is, if it is the same, or this one."""
        name, kind = self._free(name or self.title), made.kind
        tries = [name, f"{name}.{kind}", *(f"{name}.{kind}{i}" for i in range(2, 100))]
        for path in tries:
            try:
                there: nn.Module | None = self.parts.get_submodule(path)
            except AttributeError:
                there = None
            if there is None:
                if self.frozen:
                    raise ProgramError(
                        f"calibration never reached {path}; calibrate with inputs of this kind"
                    )
                made.name = path
                self.parts.place(path, made)
                return made
            if isinstance(there, type(made)) and made.is_like(there):
                return there
        raise ProgramError(f"{name}: too many maps of one name")

    def _free(self, path: str) -> str:
        """The path, parts renamed that are called like something that a piece or the tree has."""
        at: nn.Module | None = self.parts
        steps = []
        for step in path.split("."):
            taken = step == _CONSTANTS if at is self.parts else False
            if at is not None and (taken or (step not in at._modules and hasattr(at, step))):
                step = f"{step}_"  # noqa: PLW2901
            steps.append(step)
            at = None if at is None else at._modules.get(step)
        return ".".join(steps)

    def constant(self, tensor: Tensor, *, wide: bool = False) -> str:
        """The path of a tensor that natives read; one that was computed is kept in float64."""
        if _CONSTANTS not in self.parts._modules:
            self.parts.add_module(_CONSTANTS, nn.Module())
        holder = self.parts.get_submodule(_CONSTANTS)
        if tensor.dtype == torch.float64 and not wide:
            tensor = tensor.to(self.settings.dtype)
        for name, there in holder.named_buffers():
            if there.dtype == tensor.dtype and torch.equal(there, tensor.to(there.device)):
                return f"{_CONSTANTS}.{name}"
        name = f"c{len(holder._buffers)}"
        holder.register_buffer(name, tensor.detach().clone().contiguous())
        return f"{_CONSTANTS}.{name}"
