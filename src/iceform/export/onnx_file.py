"""ONNX: the frozen network as one file, checked by onnxruntime (needs ``iceform[export]``).

The file holds frozen weights and no program. Its input is the prompt, so one file of a machine runs
every program that the machine runs: feed it the prompts.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from iceform import store
from iceform.certificates.witness import settled
from iceform.errors import CapacityError, IntegrityError, ProgramError
from iceform.heads import (
    FrozenNetwork,
    LiftedAttention,
    LookUps,
    Prompt,
    SoftmaxAttention,
    SoftmaxAverage,
)
from iceform.heads.network import Embed
from iceform.paper import Emulator, LinearLayer, Plan
from iceform.run import Backend, Rounding
from iceform.validation import human_bytes, path_of, unit_roundoff, written_out

LARGEST = 2**31 - 2**20  # protobuf's limit, less what the graph itself takes
_CHECKED_BATCH = 3  # prompts that the written file is tried on
_INPUT, _OUTPUT = "tokens", "output"
DIGEST = "iceform.digest"  # the file's record of the weights' SHA-256
SHA = "iceform.sha256"  # its own, with this in its place
UNSIGNED = "#" * 64


@runtime_checkable
class TakesPrompts(Protocol):
    """A frozen network with a way to fill its prompt up: what a package's machine has to have.

    Attributes
    ----------
    network, plan
        The frozen network, and the sizes of its prompt.
    fewest_tokens
        Tokens that a prompt has at least.
    padding_token
        A token to which nothing attends, shape (features,).
    """

    @property
    def network(self) -> FrozenNetwork: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def fewest_tokens(self) -> int: ...

    @property
    def padding_token(self) -> Tensor: ...

    def through(self, forward: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        """From a prompt's tokens, or what they are written from, to the answer of ``forward``."""
        ...


class PromptRunner(nn.Module):
    """A frozen network whose input is the prompt, with any number of tokens up to its own.

    Tokens that are missing are put in as padding: of a machine, tokens flagged as such, to which
    nothing attends; of a linear map, zeros. Other networks read the tokens in fixed places, and
    their number is fixed.

    Parameters
    ----------
    thing
        A machine, an emulator or a frozen network.
    """

    padding: Tensor
    places: Tensor

    def __init__(self, thing: TakesPrompts | Emulator | FrozenNetwork) -> None:
        super().__init__()
        network = thing if isinstance(thing, FrozenNetwork) else thing.network
        self.network = network
        self.tokens, self.features = _prompt_shape(thing)
        self.fewest = _fewest_tokens(thing, self.tokens)
        dtype = next(iter(network.buffers())).dtype
        padding = torch.zeros(self.tokens, self.features, dtype=dtype)
        if isinstance(thing, TakesPrompts):
            padding[:] = thing.padding_token
        self.register_buffer("padding", padding)
        self.register_buffer("places", torch.arange(self.tokens))

    @property
    def dynamic(self) -> bool:
        """Whether fewer tokens may be given."""
        return self.fewest < self.tokens

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, n, features) to (batch, n or fixed, out_features)."""
        if not self.dynamic:
            out: Tensor = self.network(tokens)
            return out
        count = tokens.shape[1]
        padded: Tensor = self.network(self.padded(tokens))
        return padded.index_select(1, self.places[:count])

    def padded(self, tokens: Tensor) -> Tensor:
        """The same prompt with as many tokens as the network reads; padding is all alike."""
        if not self.dynamic:
            return tokens
        padding = self.padding.expand(tokens.shape[0], -1, -1)
        # Picked, not sliced: the result's layout then does not depend on the number of tokens.
        return torch.cat([tokens, padding], 1).index_select(1, self.places)


def _prompt_shape(thing: TakesPrompts | Emulator | FrozenNetwork) -> tuple[int, int]:
    if isinstance(thing, FrozenNetwork):
        first: Any = thing.layers[0]
        if isinstance(first, Embed):
            return len(first.places), thing.features.total
        lifted = isinstance(first, LiftedAttention)
        tokens = first.shared_tokens.shape[0] if lifted else first.w_o.shape[1]
        return int(tokens), thing.features.total
    plan = thing.plan
    return plan.tokens, plan.features


def _fewest_tokens(thing: TakesPrompts | Emulator | FrozenNetwork, tokens: int) -> int:
    """The weights' rows take tokens too, so there are at least as many."""
    if isinstance(thing, TakesPrompts):
        return thing.fewest_tokens
    if isinstance(thing, LinearLayer) and thing.encoding == "rows" and thing.samples > 1:
        return min(tokens, thing.out_features)
    return tokens


def onnx(thing: Any, path: str | Path) -> Path:
    """Write a machine's or an emulator's frozen network as an ONNX file.

    Before it is kept, onnxruntime runs it on random prompts, and what it returns is compared with
    torch's.

    The input ``tokens`` is (batch, tokens, features), the prompt; batch is dynamic, and so are the
    tokens of machines and linear maps. The dtype is that of the weights, float32 or float64.

    Parameters
    ----------
    thing
        What to export.
    path
        The file to write.

    Raises
    ------
    CapacityError
        If the weights would not fit an ONNX file.
    IntegrityError
        If onnxruntime's results are not torch's.
    """
    need("onnx", "onnxscript", "onnxruntime")
    if not isinstance(thing, TakesPrompts | Emulator | FrozenNetwork):
        thing = getattr(thing, "network", thing)
    if not isinstance(thing, TakesPrompts | Emulator | FrozenNetwork):
        raise ProgramError(
            f"a {type(thing).__name__} has no frozen network to export; machines, emulators and "
            "frozen networks have"
        )
    runner = PromptRunner(thing).eval()
    runner.network.check()
    return write_file(
        path, runner, "a machine sized for fewer programs or samples", runner.network.digest,
        partial(_export, runner), lambda runs: compare(runner, runs, path_of(path)),
    )  # fmt: skip


def write_file(
    path: str | Path, module: nn.Module, smaller: str, digest: str,
    export: Callable[[], Any], check: Callable[[Any], None],
) -> Path:  # fmt: skip
    """Write what ``export`` makes of a module, if ``check`` finds its session right.

    ``smaller`` says what to export where the weights are too many for a file, ``digest`` is kept
    in it.
    """
    size = sum(b.nbytes for b in module.buffers())
    if size > LARGEST:
        raise CapacityError(
            f"the weights take {human_bytes(size)}, an ONNX file holds {human_bytes(LARGEST)}; "
            f"export {smaller}"
        )
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        # The exporter's own use of parts of torch that are going away.
        warnings.simplefilter("ignore")
        program = export()
    assert program is not None
    program.model.metadata_props[DIGEST] = digest
    program.model.metadata_props[SHA] = UNSIGNED
    data, target = signed(program.model_proto.SerializeToString()), path_of(path)
    store.write({target: data}, check=lambda draft: check(session(draft)))
    return target


def need(*names: str) -> None:
    """Refuse to export without the packages it takes."""
    import importlib.util

    missing = [n for n in names if importlib.util.find_spec(n) is None]
    if missing:
        raise ProgramError(f"{', '.join(missing)} is missing: pip install 'iceform[export]'")


def _export(runner: PromptRunner) -> Any:
    example = torch.zeros(2, runner.tokens, runner.features).to(runner.padding)
    shapes: dict[int, Any] = {0: torch.export.Dim("batch")}
    if runner.dynamic:
        example = example[:, : max(runner.fewest, runner.tokens - 1)].contiguous()
        shapes[1] = torch.export.Dim("tokens", min=runner.fewest, max=runner.tokens)
    return torch.onnx.export(
        torch.export.export(runner, (example,), dynamic_shapes=(shapes,)),
        dynamo=True,
        input_names=[_INPUT],
        output_names=[_OUTPUT],
        dynamic_shapes=(shapes,),
        verbose=False,
    )


def signed(data: bytes) -> bytes:
    """The file with its own SHA-256 in it."""
    blank = UNSIGNED.encode()
    if data.count(blank) != 1:
        raise IntegrityError(f"the exported graph holds {blank!r} {data.count(blank)} times")
    return data.replace(blank, hashlib.sha256(data).hexdigest().encode())


def _check_signature(data: bytes, recorded: str | None, path: Path) -> None:
    """Refuse a file that is not, byte for byte, what was written."""
    blank = data.replace((recorded or UNSIGNED).encode(), UNSIGNED.encode(), 1)
    if hashlib.sha256(blank).hexdigest() != recorded:
        raise IntegrityError(
            f"{path} is not what was exported there: its SHA-256 is not the one that it records; "
            "export it again"
        )


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without a logger's warnings: the exporter lists packages that it could use."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def session(path: Path) -> Any:
    """A session on the file as it is now, which must be what was exported."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()  # its own are many, and spin
    data = path.read_bytes()
    try:
        session = onnxruntime.InferenceSession(
            data, sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as broken:  # onnxruntime has no base class for its errors
        raise IntegrityError(f"{path} cannot be read as an ONNX file: {broken}") from None
    _check_signature(data, session.get_modelmeta().custom_metadata_map.get(SHA), path)
    return session


def compare(runner: PromptRunner, session: Any, path: Path) -> None:
    """Random prompts through both; a softmax moves by at most what its logits are rounded by."""
    generator = torch.Generator().manual_seed(random.SystemRandom().getrandbits(32))
    shape = (_CHECKED_BATCH, runner.tokens, runner.features)
    tokens = torch.rand(shape, generator=generator, dtype=torch.float64).to(runner.padding) - 0.5
    for count in {runner.fewest, runner.tokens}:
        part = tokens[:, :count].contiguous()
        (found,) = session.run([_OUTPUT], {_INPUT: part.numpy()})
        want = runner(part)
        off = float((torch.from_numpy(found) - want).abs().max())
        allowed = _logit_rounding(runner, part) * max(1.0, float(want.abs().max()))
        if not math.isfinite(allowed):
            raise ProgramError(
                f"logits of this network round by so much in {tokens.dtype} that no file could be "
                f"told from {path}; export it in float64"
            )
        if not off <= allowed:
            raise IntegrityError(
                f"onnxruntime on {path} is off by {off:.3g} from torch, rounding explains "
                f"{allowed:.3g}: it is not a file of these weights"
            )


def _logit_rounding(runner: PromptRunner, tokens: Tensor) -> float:
    """Twice n u max |logit terms| over all layers, and the layers' own sums.

    Tokens that a margin hides from a query weigh exactly 0, however their logits are rounded.
    """
    unit, total, stream = unit_roundoff(tokens.dtype), 0.0, runner.padded(tokens)
    for layer in runner.network.layers:
        if isinstance(layer, SoftmaxAttention):
            total += float(_logits_off(layer, stream, unit).max())
        total += 4 * stream.shape[-2] * unit
        stream = layer(stream)
    # Each layer's error is carried by the next; beyond 1 nothing is bounded by this.
    return min(2 * total * math.e, 1.0) if total < 1 else math.inf


def _logits_off(layer: SoftmaxAttention, stream: Tensor, unit: float) -> Tensor:
    """By how much logits may differ in two evaluations, of tokens whose weight that moves."""
    asked = (layer.w_o != 0).any(-1).any(0).nonzero()[:, 0]
    read = layer._tokens(stream).double()
    w_q, w_k = layer.w_q.double(), layer.w_k.double()
    queries = read[..., asked, :]
    scores = (queries @ w_q.mT) @ (read @ w_k.mT).mT
    terms = (queries.abs() @ w_q.abs().mT) @ (read.abs() @ w_k.abs().mT).mT
    off = 4 * (read.shape[-1] + layer.w_k.shape[-2]) * unit * terms
    gaps = scores.amax(-1, keepdim=True) - scores
    return off.masked_fill(settled(gaps, off), 0.0)


class OnnxRuntime(Backend):
    """The network that a file holds, run by onnxruntime.

    Parameters
    ----------
    network
        Whose weights the file was found to hold.
    session
        Of the file.
    """

    rounding = Rounding(literal=True)

    def __init__(self, network: FrozenNetwork, session: Any) -> None:
        super().__init__(network)
        self.name, self._session = "onnxruntime", session

    def run(self, prompt: Prompt | LookUps | SoftmaxAverage) -> Tensor:
        tokens = prompt.tokens
        given = written_out(tokens.detach().reshape(-1, *tokens.shape[-2:]).cpu())
        (out,) = self._session.run([_OUTPUT], {_INPUT: given.numpy()})
        return torch.from_numpy(out).to(tokens).reshape(*tokens.shape[:-2], *out.shape[-2:])
