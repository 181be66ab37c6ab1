"""FrozenNetwork: layers in order, and a digest of their weights; Prompt: what it reads."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iceform.attention.layers import Features, SoftmaxAttention
from iceform.attention.variants import HopfieldLayer, ProjectedAttention
from iceform.errors import IntegrityError
from iceform.interpolation import Interpolant
from iceform.pretrained import Pretrained
from iceform.validation import full_precision


@dataclass(frozen=True, eq=False)
class Prompt(Pretrained, kept_as="Prompt"):
    """Tokens, and names for what they hold.

    Attributes
    ----------
    tokens
        Shape (*batch, tokens, features).
    features
        Names of the feature axis.
    roles
        What each token is, in words.
    """

    tokens: Float[Tensor, "*b n d"]
    features: Features
    roles: tuple[str, ...]

    def __repr__(self) -> str:
        names = ", ".join(name if n == 1 else f"{name}[{n}]" for name, n in self.features.sizes)
        shape = " x ".join(map(str, self.tokens.shape))
        return f"Prompt(tokens {shape}; features {names}; the first is {self.roles[0]!r})"

    def __getitem__(self, name: str) -> Tensor:
        """The named features of every token."""
        return self.tokens[..., self.features[name]]

    # ---------------------------------------------------------------------------------- files

    def card(self) -> tuple[str, dict[str, str]]:
        return "Tokens for a frozen network to read.", {}

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        features = [list(pair) for pair in self.features.sizes]
        return {"features": features, "roles": list(self.roles)}, {"tokens": self.tokens}

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> Prompt:
        features = Features(tuple((str(name), int(size)) for name, size in content["features"]))
        tokens = tensors["tokens"]
        if tuple(tokens.shape[-2:]) != (len(content["roles"]), features.total):
            raise IntegrityError(
                f"tokens of shape {tuple(tokens.shape)} do not fit their description"
            )
        return Prompt(tokens, features, tuple(content["roles"]))


_CHECKED: ContextVar[bool] = ContextVar("weights are checked before they run", default=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """For interventions: inside, networks run whatever their weights are.

    Nothing is certified then; a result's attestation still says which weights ran.
    """
    token = _CHECKED.set(False)
    try:
        yield
    finally:
        _CHECKED.reset(token)


@contextmanager
def outside_transforms() -> Iterator[None]:
    """For weights inside torch.func's vmap and grad, whose wrappers they must not get."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        yield
        return
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        yield


def is_checked() -> bool:
    """Whether weights are checked before they run."""
    return _CHECKED.get()


_COPIED = 1 << 26  # bytes of copies that are kept, to be compared instead of hashed
_SPARSE = 1 / 8  # of a buffer's entries: where fewer are not 0, only those are copied
_SMALL = 1 << 20  # bytes of a buffer that is compared whole, which is quicker
# What a layer computes with, beside its buffers.
_SETTINGS = ("residual", "stored", "group_sizes")
_WITH_HEADS = SoftmaxAttention | HopfieldLayer | ProjectedAttention


class FrozenNetwork(nn.Module):
    """Layers applied in order. It has buffers and no parameters.

    Parameters
    ----------
    layers
        Attention layers (and, for a readout, affine maps).
    features
        Names of the input's features.
    tables
        Look-up tables that were written into the weights. Whoever reads the weights takes one of
        them only where the weights hold it.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        features: Features,
        tables: Sequence[Interpolant] = (),
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.features = features
        self.tables = tuple(tables)
        self.expected: str | None = None
        self._sealed: _Sealed | None = None

    @full_precision
    def forward(self, tokens: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m o"]:
        """Run every layer."""
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens

    def stream(self, tokens: Float[Tensor, "*b n d"]) -> Iterator[Tensor]:
        """The tokens after each layer in turn."""
        for layer in self.layers:
            tokens = layer(tokens)
            yield tokens

    @property
    def digest(self) -> str:
        """SHA-256 of every weight, with its name, dtype and shape, as they are now."""
        return weights_digest(self)

    def seal(self) -> Self:
        """Remember the digest as the one that the sizes imply: for whoever has just built it."""
        self.expected = self.digest
        self._sealed = _Sealed.of(self)
        return self

    def check(self) -> str:
        """The digest of the weights as they are now; refused where they are not those built.

        Every byte is looked at every time, since no counter sees a write through ``.data``, NumPy
        or DLPack: compared with a copy that was hashed, and hashed itself where it differs.
        """
        if self.expected is not None and self._sealed is not None and self._sealed.same(self):
            return self.expected
        found = self.digest
        if self.expected is not None and found != self.expected and is_checked():
            raise IntegrityError(
                f"the frozen weights were changed: their SHA-256 is {found[:12]}, their sizes "
                f"imply {self.expected[:12]}; build the network anew, or wrap an intervention in "
                "iceform.attention.unchecked()"
            )
        if found == self.expected:
            self._sealed = _Sealed.of(self)
        return found

    @property
    def is_flagged(self) -> bool:
        """Whether :meth:`unchanged` can tell: the weights are on a GPU, and a copy beside them."""
        return self._sealed is not None and all(b.is_cuda for b in self.buffers())

    def unchanged(self, count: Callable[[Tensor], Tensor] = torch.count_nonzero) -> Tensor:
        """Whether every bit is as it was sealed, a flag on a GPU that nobody waits for.

        ``count`` counts words that are not 0.
        """
        assert self._sealed is not None
        flags = self._sealed.flags(self, count)
        device = next(self.buffers()).device
        if flags is None:
            return torch.zeros((), device=device)
        return torch.stack([torch.as_tensor(flag, device=device) for flag in flags]).all()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """A cast is another network of the same sizes; moving it to a device is not."""
        kinds = {b.dtype for b in self.buffers()}
        cast = self.expected is not None and any(fn(torch.zeros(1).to(k)).dtype != k for k in kinds)
        sealed = cast and self.expected == self.digest
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._sealed = None  # it is made again, where they are now, when they are hashed next
        return self.seal() if sealed else self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sealed": None}

    @property
    def heads(self) -> int:
        """Attention heads in all layers together."""
        layers = [x for x in self.layers if isinstance(x, _WITH_HEADS)]
        return sum(len(x.labels) for x in layers)


@dataclass(frozen=True, eq=False)
class _Sealed:
    """A copy of a network's weights whose digest is known.

    Comparing with it finds what hashing finds, in a small part of the time, and on a GPU without
    moving the weights.
    """

    parts: tuple[tuple[object, ...], ...]
    copies: dict[str, _Copy]

    @classmethod
    def of(cls, network: FrozenNetwork) -> _Sealed | None:
        """Of a network as it is now; None where a copy would take much room."""
        with outside_transforms(), torch.inference_mode(False):
            buffers = dict(network.named_buffers(remove_duplicate=False))
            copies, room = dict[str, _Copy](), _COPIED
            for name, buffer in buffers.items():
                found = _Copy.of(buffer.detach(), room)
                if found is None:
                    return None
                copies[name] = found
                room -= found.nbytes
            return cls(_parts(network.named_modules(remove_duplicate=False)), copies)

    def same(self, network: FrozenNetwork) -> bool:
        """Whether the weights are the copy's, bit for bit."""
        flags = self.flags(network)
        if flags is None:
            return False
        far = [flag for flag in flags if isinstance(flag, Tensor)]
        if not all(flag for flag in flags if not isinstance(flag, Tensor)):
            return False
        near = far[0].device if far else None
        # The host waits for a GPU once.
        return not far or bool(torch.stack([flag.to(near) for flag in far]).all())

    def flags(
        self, network: FrozenNetwork, count: Callable[[Tensor], Tensor] = torch.count_nonzero
    ) -> list[Tensor | bool] | None:
        """Whether each buffer is the copy's; None where they cannot be, by shape or structure."""
        with outside_transforms():
            modules = list(network.named_modules(remove_duplicate=False))
            # As named_buffers, by the same walk: every call of a construction waits for this.
            buffers = {
                f"{name}.{key}" if name else key: buffer
                for name, part in modules
                for key, buffer in part._buffers.items()
                if buffer is not None
            }
            if buffers.keys() != self.copies.keys() or _parts(modules) != self.parts:
                return None
            pairs = [(buffers[name], copy) for name, copy in self.copies.items()]
            if not all(copy.is_alike(buffer) for buffer, copy in pairs):
                return None
            return [copy.equals(buffer, count) for buffer, copy in pairs]


def _parts(modules: Iterable[tuple[str, nn.Module]]) -> tuple[tuple[object, ...], ...]:
    """What :func:`_structure` says in words, to be compared at every call."""
    return tuple((name, type(part), *map(vars(part).get, _SETTINGS)) for name, part in modules)


@dataclass(frozen=True, eq=False)
class _Copy:
    """A buffer's bits: all of them, or those of the words that are not 0, and where they are.

    Words are compared, not numbers: zeros have signs, and what is not a number equals itself.
    """

    kind: tuple[torch.Size, torch.dtype, torch.device]
    words: Tensor
    places: Tensor | None

    @classmethod
    def of(cls, buffer: Tensor, room: int) -> _Copy | None:
        """Of a buffer as it is now; None where the copy is larger than ``room`` bytes."""
        kind, words = (buffer.shape, buffer.dtype, buffer.device), _words(buffer)
        held = int(torch.count_nonzero(words))
        sparse = buffer.nbytes > _SMALL and held <= _SPARSE * words.numel()
        if (held * (8 + words.element_size()) if sparse else buffer.nbytes) > room:
            return None
        if not sparse:
            return cls(kind, words.clone(), None)
        places = words.nonzero()[:, 0]
        return cls(kind, words[places], places)

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return self.words.nbytes + (0 if self.places is None else self.places.nbytes)

    def is_alike(self, buffer: Tensor) -> bool:
        """Whether shape, dtype and device are the same."""
        return self.kind == (buffer.shape, buffer.dtype, buffer.device)

    def equals(self, buffer: Tensor, count: Callable[[Tensor], Tensor]) -> Tensor | bool:
        """Whether every bit is the same: as many words are not 0, and those kept are as kept."""
        if self.places is None and not buffer.is_cuda:
            own = buffer.contiguous()
            return not _memcmp(own.data_ptr(), self.words.data_ptr(), self.words.nbytes)
        words = _words(buffer)
        if self.places is None:
            return (words == self.words).all()
        here = (words[self.places] == self.words).all()
        return here & (count(words) == len(self.words))


def _words(t: Tensor) -> Tensor:
    """The bytes, as many at a time as fit."""
    flat, size = t.detach().contiguous().view(-1), t.nbytes
    return flat.view(_WORDS[min(size & -size, 8)] if size else torch.uint8)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# C's own: twice as quick as arrays of flags.
_memcmp = (ctypes.CDLL(None) if os.name == "posix" else ctypes.cdll.msvcrt).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _structure(module: nn.Module) -> str:
    """The layers and what they compute with beside their buffers, one a line."""
    lines = []
    for name, part in sorted(module.named_modules(remove_duplicate=False)):
        settings = [f"{key}={getattr(part, key)}" for key in _SETTINGS if hasattr(part, key)]
        lines.append(f"{name} {type(part).__name__} {settings}\n")
    return "".join(lines)


def weights_digest(module: nn.Module) -> str:
    """SHA-256 of a module's structure and its buffers, in the order of their names."""
    sha = hashlib.sha256()
    for piece in digested(module):
        sha.update(piece.encode() if isinstance(piece, str) else piece[1])
    return sha.hexdigest()


def digested(module: nn.Module) -> Iterator[str | tuple[str, memoryview]]:
    """What a digest is of, in order: text as UTF-8, and buffers by name with their bytes."""
    yield _structure(module)
    with outside_transforms():
        for name, buffer in sorted(module.named_buffers(remove_duplicate=False)):
            data = buffer.detach().cpu().contiguous()
            yield f"{name} {data.dtype} {tuple(data.shape)}\n"
            yield name, data.reshape(-1).view(torch.uint8).numpy().data
