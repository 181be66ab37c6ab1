"""The literal layers, softmax attention as def:attn has it, and FrozenNetwork: layers in order.

The paper writes tokens as columns; here they are rows, as PyTorch has them, so a sequence is a
tensor of shape (*batch, tokens, features). Weights keep the paper's orientation: ``W_K`` is
(head_dim, features) and acts as ``tokens @ W_K.T``. Nothing else multiplies them. A network knows
the digest of its weights, and refuses to run others.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iceform import tuning
from iceform.errors import IntegrityError, ShapeError
from iceform.tables import Interpolant
from iceform.validation import full_precision


@dataclass(frozen=True)
class Features(Mapping[str, slice]):
    """Named, contiguous blocks of the feature axis, in order.

    Examples
    --------
    >>> at = Features.of(x=2, y=1)
    >>> at["y"], at.total, at.names()
    (slice(2, 3, None), 3, ['x[0]', 'x[1]', 'y'])
    """

    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, **sizes: int) -> Features:
        """Blocks of the given sizes, in the order given."""
        return cls(tuple(sizes.items()))

    @property
    def total(self) -> int:
        """The number of features."""
        return sum(size for _, size in self.sizes)

    def __getitem__(self, name: str) -> slice:
        start = 0
        for other, size in self.sizes:
            if other == name:
                return slice(start, start + size)
            start += size
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def names(self) -> list[str]:
        """One name per feature: ``x[0]``, ``x[1]``, ..."""
        return [
            name if size == 1 else f"{name}[{j}]" for name, size in self.sizes for j in range(size)
        ]


def freeze(module: nn.Module, what: str, **weights: tuple[Tensor | None, str]) -> None:
    """Give a module its weights, as buffers: no optimiser can touch them.

    Each comes with the names of its axes; axes of one name are of one size. Axes called heads may
    be 1 as well: weights that all heads share. Weights that do not fit are refused.
    """
    given = {name: (w, axes.split()) for name, (w, axes) in weights.items() if w is not None}
    sizes: dict[str, set[int]] = {}
    for weight, axes in given.values():
        for axis, size in zip(axes, weight.shape, strict=False):
            sizes.setdefault(axis, set()).add(size)
    sizes["heads"] = sizes.get("heads", {1}) - {1}
    if any(w.ndim != len(axes) for w, axes in given.values()) or max(map(len, sizes.values())) > 1:
        shapes = (f"{name} {tuple(w.shape)}" for name, (w, _) in given.items())
        wanted = (f"{name} ({', '.join(axes)})" for name, (_, axes) in given.items())
        raise ShapeError(
            f"{', '.join(shapes)} do not make one {what}, whose axes are {', '.join(wanted)}"
        )
    for name, (held, _) in weights.items():
        module.register_buffer(name, held)


def check_tokens(what: str, x: Tensor, tokens: int, features: int) -> None:
    """Refuse what is not (*batch, tokens, features)."""
    if x.shape[-2:] != (tokens, features):
        raise ShapeError(
            f"this {what} takes (*batch, {tokens} tokens, {features} features), "
            f"got {tuple(x.shape)}"
        )


class Embed(nn.Module):
    r"""The affine map Lin as an embedding: where a token's features go, and its position.

    .. math:: \mathrm{Embed}(Z)_t = A z_t + B p_t + c

    Parameters
    ----------
    features
        A, shape (out_features, in_features).
    places
        Positions p_t, shape (tokens, places).
    spread
        B, shape (out_features, places).
    constant
        c, shape (out_features,).
    names
        Names of the features that it gives.
    """

    features: Tensor
    places: Tensor
    spread: Tensor
    constant: Tensor

    def __init__(
        self,
        features: Float[Tensor, "q p"],
        places: Float[Tensor, "n k"],
        spread: Float[Tensor, "q k"],
        constant: Float[Tensor, "q"],
        *,
        names: Features | None = None,
    ) -> None:
        super().__init__()
        freeze(
            self, "map", features=(features, "out features"), places=(places, "tokens places"),
            spread=(spread, "out places"), constant=(constant, "out"),
        )  # fmt: skip
        self.names = names

    @property
    def positions(self) -> Float[Tensor, "n q"]:
        """What is added to each token."""
        return self.places @ self.spread.mT + self.constant

    def forward(self, z: Float[Tensor, "*b n p"]) -> Float[Tensor, "*b n q"]:
        """Embed."""
        check_tokens("map", z, len(self.places), self.features.shape[1])
        return z @ self.features.mT + self.positions


EVERY = slice(None)


@dataclass(frozen=True)
class AttentionTrace:
    """What one attention layer did."""

    scores: Tensor  # (*batch, heads, queries, keys)
    weights: Tensor  # (*batch, heads, queries, keys), rows sum to 1
    output: Tensor  # (*batch, out_tokens, out_features)


@dataclass(frozen=True, eq=False)
class Entry:
    """One number of what a layer makes of one prompt, and how it came about.

    Attributes
    ----------
    scores, terms
        Logits and the sums of their absolute products, shape (heads, queries, keys); of the heads
        that write it and the queries that it reads.
    values
        Shape (heads, keys).
    reads
        W_O, shape (1 or heads, queries).
    depth
        Numbers that are added up on the way to a logit, at most.
    """

    scores: Tensor
    terms: Tensor
    values: Tensor
    reads: Tensor
    depth: int

    @property
    def value(self) -> Float[Tensor, ""]:
        """The number."""
        looked = torch.softmax(self.scores, -1) @ self.values[..., None]
        return (self.reads * looked[..., 0]).sum()


class SoftmaxAttention(nn.Module):
    r"""Multi-head softmax attention with frozen weights (def:attn).

    .. math:: \mathrm{Attn}(X) = \sum_h W_V^{(h)} X \,
        \mathrm{Softmax}\big((W_K^{(h)} X)^\top W_Q^{(h)} X\big)\, W_O^{(h)}

    with the softmax over keys, no scaling by the head dimension, and W_O on the sequence side.
    All weights are buffers: no optimiser can touch them.

    Parameters
    ----------
    w_k, w_q
        Shape (heads, head_dim, features).
    w_v
        Shape (heads, out_features, features).
    w_o
        Shape (heads, tokens, out_tokens). Weights that all heads share may have a first axis of 1.
    labels
        What each head is for.
    residual
        Add the input to the output; needs out_features = features and out_tokens = tokens.

    Examples
    --------
    One head of two tokens of one feature, whose weights are all one: both look at the larger token.

    >>> one = torch.ones(1, 1, 1)
    >>> layer = SoftmaxAttention(100 * one, one, one, torch.eye(2)[None])
    >>> layer(torch.tensor([[1.0], [3.0]]))
    tensor([[3.],
            [3.]])
    """

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor
    w_o: Tensor

    def __init__(
        self,
        w_k: Float[Tensor, "h k d"],
        w_q: Float[Tensor, "h k d"],
        w_v: Float[Tensor, "h o d"],
        w_o: Float[Tensor, "h n m"],
        *,
        labels: Sequence[str] | None = None,
        residual: bool = False,
    ) -> None:
        super().__init__()
        freeze(
            self, "layer", w_k=(w_k, "heads width features"), w_q=(w_q, "heads width features"),
            w_v=(w_v, "heads out features"), w_o=(w_o, "heads tokens out_tokens"),
        )  # fmt: skip
        if residual and (w_v.shape[1] != w_v.shape[2] or w_o.shape[1] != w_o.shape[2]):
            shapes = f"w_v {tuple(w_v.shape)} and w_o {tuple(w_o.shape)}"
            raise ShapeError(f"a residual layer must keep tokens and features, got {shapes}")
        self.residual = residual
        count = max(len(w) for w in (w_k, w_q, w_v, w_o))
        self.labels = tuple(labels or (f"head {h}" for h in range(count)))
        if len(self.labels) != count:
            raise ShapeError(f"{len(self.labels)} labels were given for {count} heads")

    def forward(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m o"]:
        """Attend; queries whose row of W_O is zero in every head are not computed.

        An exported graph computes them: its shapes must not depend on weights.
        """
        self._check_input(x)
        tokens = self._tokens(x)
        asked: Tensor | slice = EVERY
        if not torch.compiler.is_compiling():  # how many there are depends on the weights
            asked = (self.w_o != 0).any(-1).any(0).nonzero()[:, 0]
        queries = tokens[..., asked, :] @ self.w_q.mT
        weights = torch.softmax(queries @ (tokens @ self.w_k.mT).mT, -1)
        output = self._read(weights @ (tokens @ self.w_v.mT), asked)
        return x + output if self.residual else output

    def attend(self, x: Float[Tensor, "*b n d"]) -> AttentionTrace:
        """Attend, and say how."""
        self._check_input(x)
        tokens = self._tokens(x)
        keys = tokens @ self.w_k.mT
        queries = tokens @ self.w_q.mT
        scores = queries @ keys.mT
        return AttentionTrace(scores, torch.softmax(scores, -1), self.forward(x))

    def entry(self, x: Float[Tensor, "n d"], token: int, feature: int) -> Entry:
        """One number of the output, by the heads that write it and the queries that it reads."""
        self._check_input(x)
        heads, asked = self._written(feature), self._asked(token)
        tokens = self._tokens(x, heads)
        w_k, w_q, w_v, w_o = (_some(w, heads) for w in (self.w_k, self.w_q, self.w_v, self.w_o))
        queries, keys = tokens[..., asked, :] @ w_q.mT, tokens @ w_k.mT
        return Entry(
            queries @ keys.mT,
            queries.abs() @ keys.abs().mT,
            (tokens @ w_v[:, feature, :, None])[..., 0],
            w_o[:, asked, token],
            sum(w_k.shape[-2:]) + self._read_features,
        )

    def entry_work(self, x: Float[Tensor, "n d"], token: int, feature: int) -> int:
        """Multiplications that :meth:`entry` takes."""
        heads, asked = len(self._written(feature)), len(self._asked(token))
        count, (head_dim, wide) = self.w_o.shape[1], self.w_k.shape[1:]
        return self._lift_work(x, heads) + heads * count * (wide + asked) * (head_dim + 1)

    def _written(self, feature: int) -> Tensor:
        """Heads that write a feature."""
        if len(self.w_v) == 1:
            return torch.arange(len(self.labels), device=self.w_v.device)
        return (self.w_v[:, feature] != 0).any(-1).nonzero()[:, 0]

    def _asked(self, token: int) -> Tensor:
        """Queries that an output token reads."""
        return (self.w_o[:, :, token] != 0).any(0).nonzero()[:, 0]

    @property
    def _read_features(self) -> int:
        """Products that are added up in a token before the heads read it."""
        return 0

    def _lift_work(self, x: Tensor, heads: int) -> int:
        return 0

    def _tokens(self, x: Tensor, heads: Tensor | slice = EVERY) -> Tensor:
        """What the heads read, shape (*batch, heads or 1, tokens, features)."""
        return x.unsqueeze(-3)

    def _read(self, looked: Tensor, rows: Tensor | slice = EVERY) -> Tensor:
        readout = self.w_o[:, rows].mT
        return readout[0] @ looked.sum(-3) if len(readout) == 1 else (readout @ looked).sum(-3)

    def extra_repr(self) -> str:
        """Sizes, for ``print``."""
        heads, (_, head_dim, features) = len(self.labels), self.w_k.shape
        return (
            f"heads={heads}, head_dim={head_dim}, features={features}, tokens={self.w_o.shape[1]}"
        )

    def _check_input(self, x: Tensor) -> None:
        check_tokens("layer", x, self.w_o.shape[1], self.w_k.shape[2])


def _some(weights: Tensor, heads: Tensor) -> Tensor:
    """The weights of some heads; those that all share, once."""
    return weights if len(weights) == 1 else weights[heads]


_CHECKED: ContextVar[bool] = ContextVar("weights are checked before they run", default=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """For interventions: inside, networks run whatever their weights are.

    Nothing is certified then; a result's attestation still says which weights ran.

    Examples
    --------
    >>> step = ice.paper.GradientStep("squared", 0.5, dim=1, samples=2, backend="literal")
    >>> x, y, w = torch.ones(2, 1), torch.ones(2), torch.zeros(1)
    >>> x, y, w = x.double(), y.double(), w.double()
    >>> _ = step.network.layers[1].w_v.zero_()  # the head writes nothing
    >>> with unchecked():
    ...     print(step(x, y, w))
    tensor([0.], dtype=torch.float64)
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


# What a layer computes with, beside its buffers.
_SETTINGS = ("residual", "stored", "group_sizes")


class LayerFormula(Protocol):
    """What a design's layer computes, said in fewer operations than its matrices take."""

    def __call__(self, layer: nn.Module, tokens: Tensor, backend: str) -> Tensor:
        """What the layer makes of the tokens, by the backend of this name."""


class FrozenNetwork(nn.Module):
    """Layers applied in order. It has buffers and no parameters.

    Parameters
    ----------
    layers
        Attention layers (and, for a readout, affine maps).
    features
        Names of the input's features.
    tables
        Look-up tables that were written into the weights.
    formulas
        What each layer computes, where the weights are those that were built: what a fused run
        computes by. None stands for the layer itself; none at all for all of them.
    layout
        Of prompts whose tokens a fused run need not write (:class:`LookUpLayout`).

    Examples
    --------
    The network of a construction, its digest, and what becomes of a change:

    >>> step = ice.paper.GradientStep("squared", 0.5, dim=1, samples=2)
    >>> network = step.network
    >>> network.check() == network.digest == network.expected
    True
    >>> len(list(network.parameters()))
    0
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        features: Features,
        tables: Sequence[Interpolant] = (),
        *,
        formulas: Sequence[LayerFormula | None] = (),
        layout: object = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.features = features
        self.tables = tuple(tables)
        self.formulas = tuple(formulas) or (None,) * len(layers)
        self.layout = layout
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
                "iceform.heads.unchecked()"
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
        """A cast is another network of the same sizes; moving it to a device is not.

        A cast to more digits does not bring back those that were rounded off, so what it makes is
        not what a construction of that dtype builds, and :meth:`check` refuses it.
        """
        kinds = {b.dtype for b in self.buffers()} if self.expected is not None else set()
        casts = [(kind, fn(torch.zeros(1).to(kind)).dtype) for kind in kinds]
        rounds = any(new != old for old, new in casts) and not any(_widens(*c) for c in casts)
        sealed = rounds and self.expected == self.digest
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._sealed = None  # it is made again, where they are now, when they are hashed next
        return self.seal() if sealed else self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sealed": None}

    @property
    def heads(self) -> int:
        """Attention heads in all layers together."""
        return sum(len(getattr(layer, "labels", ())) for layer in self.layers)


def _widens(old: torch.dtype, new: torch.dtype) -> bool:
    """Whether a cast adds digits, so that it does not give what a build in that dtype gives."""
    if old == new or not (old.is_floating_point and new.is_floating_point):
        return old != new
    return torch.finfo(new).eps < torch.finfo(old).eps


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
        """A copy of a network's weights as they are now; None where it would take much room."""
        with outside_transforms(), torch.inference_mode(False):
            buffers = dict(network.named_buffers(remove_duplicate=False))
            copies, room = dict[str, _Copy](), tuning.NETWORK_COPIED
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
    """Names, classes and settings of all modules, which are compared at every call."""
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
        """A copy of a buffer as it is now; None where it would take more than ``room`` bytes."""
        kind, words = (buffer.shape, buffer.dtype, buffer.device), _words(buffer)
        held = int(torch.count_nonzero(words))
        sparse = (
            buffer.nbytes > tuning.NETWORK_SMALL and held <= tuning.NETWORK_SPARSE * words.numel()
        )
        if (held * (8 + words.element_size()) if sparse else buffer.nbytes) > room:
            return None
        if not sparse:
            return cls(kind, words.clone(), None)
        places = words.nonzero()[:, 0]
        return cls(kind, words[places], places)

    @property
    def nbytes(self) -> int:
        """Bytes that the copy takes."""
        return self.words.nbytes + (0 if self.places is None else self.places.nbytes)

    def is_alike(self, buffer: Tensor) -> bool:
        """Whether shape, dtype and device are the same."""
        return self.kind == (buffer.shape, buffer.dtype, buffer.device)

    def equals(self, buffer: Tensor, count: Callable[[Tensor], Tensor]) -> Tensor | bool:
        """Whether every bit is the same: as many words are not 0, and those kept are as kept."""
        if self.places is None and not buffer.is_cuda:
            own = _plain(buffer)
            return not _memcmp(own.data_ptr(), self.words.data_ptr(), self.words.nbytes)
        words = _words(buffer)
        if self.places is None:
            return (words == self.words).all()
        here = (words[self.places] == self.words).all()
        return here & (count(words) == len(self.words))


def _plain(t: Tensor) -> Tensor:
    """Numbers in memory as they count: a view may negate or conjugate what it is of."""
    return t.detach().resolve_neg().resolve_conj().contiguous()


def _words(t: Tensor) -> Tensor:
    """The bytes, as many at a time as fit."""
    flat, size = _plain(t).view(-1), t.nbytes
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
    """What a digest is of, in order: text as UTF-8, and buffers by name with their bytes.

    Examples
    --------
    >>> step = ice.paper.GradientStep("squared", 0.5, dim=1, samples=2)
    >>> sha = __import__("hashlib").sha256()
    >>> for piece in digested(step.network):
    ...     sha.update(piece.encode() if isinstance(piece, str) else piece[1])
    >>> sha.hexdigest() == step.network.digest
    True
    """
    yield _structure(module)
    with outside_transforms():
        for name, buffer in sorted(module.named_buffers(remove_duplicate=False)):
            data = _plain(buffer.cpu())
            yield f"{name} {data.dtype} {tuple(data.shape)}\n"
            yield name, data.reshape(-1).view(torch.uint8).numpy().data
