"""check: load a folder with transformers, run it, and hold it to what is claimed.

The weights are attested: they are rebuilt from the recorded sizes and compared, bit for bit, with
those that transformers has in memory, and so is every setting of the config. Then the prompt is
run and the answer compared with the exact algorithm, to 50 digits where it has no function of the
user's. Quantised, merged or adapted weights are not the ones the certificate is about: refused.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from iceform import store
from iceform.certificates import Attestation, Certificate
from iceform.errors import DeviceError, IntegrityError, PrecisionError, ProgramError
from iceform.targets.data import check_tensors
from iceform.targets.folder import CONFIG, StockModel, digest, load
from iceform.validation import check_choice, check_matmul_precision, full_precision

_NOT_BEHAVIOUR = ("architectures", "dtype")


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes
    ----------
    value
        The stock network's answer.
    measured
        Its largest distance from the exact algorithm's.
    certificate
        What is proven for these data.
    attestation
        SHA-256 of the weights that ran, and of those that the sizes imply.
    """

    value: Tensor
    measured: float
    certificate: Certificate
    attestation: Attestation

    @property
    def ok(self) -> bool:
        """Whether the answer is where it was proven to be."""
        return self.measured <= self.certificate.error

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "within" if self.ok else "OUTSIDE"
        return (
            f"measured {self.measured:.2e}, {verdict} the certified {self.certificate.error:.2e} "
            f"({self.certificate.backend}, "
            f"{str(self.certificate.dtype).removeprefix('torch.')})\n{self.attestation.explain()}"
        )


@full_precision
def check(
    path: str | Path,
    x: Tensor,
    y: Tensor,
    *,
    attention: str = "sdpa",
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    **parameters: Any,
) -> Checked:
    """Load the folder with transformers, attest it, run it on data, compare with exact.

    Parameters
    ----------
    path
        A folder that :func:`iceform.targets.write` wrote.
    x, y
        Samples (n, dim) and labels (n,).
    attention
        "eager" or "sdpa".
    dtype
        To load in; None for the folder's own, the only one that is certified.
    device
        Where it runs. Off the CPU "sdpa" is torch's own composition of products and softmax.
    parameters
        What is in the prompt: step size, penalty and the like.

    Raises
    ------
    IntegrityError
        If a weight or a setting is not the one that the recorded sizes imply.
    PrecisionError
        If nothing is certified: another dtype, or data too large.
    """
    check_tensors(X=x, y=y)
    check_choice("attention", attention, ("eager", "sdpa"))
    model = load(path)
    _check_dtype(model, dtype)
    _check_files(model)
    stock = _moved(network(model, attention, dtype), torch.device(device))
    found = attest(model, stock)
    _check_certified(model, x, y, attention, parameters)
    with kernels(torch.device(device)):
        value = model.spec.run(stock, x, y, **parameters)
    certificate, measured = model.spec.judge(value, x, y, attention, **parameters)
    return Checked(value, measured, certificate, found)


def _check_files(model: StockModel) -> None:
    """Refuse what transformers would put on top of the weights, before it does."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if (model.path / name).exists():
            raise IntegrityError(
                f"{model.path} holds {name}: transformers would load an adapter on top of the "
                "weights, and nothing is certified of that; remove it"
            )
    if not (model.path / CONFIG).exists():
        raise IntegrityError(
            f"{model.path} holds no {CONFIG}, which transformers reads: a save was interrupted; "
            "write the folder again"
        )
    config = store.read_json(model.path / CONFIG, CONFIG)
    if "quantization_config" in config:
        raise IntegrityError(
            f"{model.path / CONFIG} has a quantization_config: quantised weights are not those "
            "that the sizes imply; write the folder again"
        )


def _check_certified(
    model: StockModel, x: Tensor, y: Tensor, attention: str, parameters: dict[str, Any]
) -> None:
    """Refuse data for which nothing is proven, before anything runs."""
    if model.spec.typical() is None:
        return
    certificate = model.certificate(x, y, attention, **parameters)
    if not math.isfinite(certificate.error):
        raise PrecisionError(
            f"nothing is certified for these data in {model.spec.dtype} ({certificate.domain}); "
            "scale them down, take a smaller step, or write the target in float64"
        )


def network(model: StockModel, attention: str = "sdpa", dtype: torch.dtype | None = None) -> Any:
    """The folder as transformers loads it."""
    try:
        from transformers import AutoModel, AutoModelForCausalLM
    except ImportError:
        raise ProgramError("transformers is missing: pip install 'iceform[export]'") from None
    wanted = dtype or model.spec.torch_dtype
    kind = AutoModel if model.spec.vocabulary() is None else AutoModelForCausalLM
    return kind.from_pretrained(
        model.path, attn_implementation=attention, dtype=wanted, local_files_only=True
    ).eval()


def _moved(stock: Any, device: torch.device) -> Any:
    try:
        return stock.to(device)
    except (AssertionError, ImportError, RuntimeError) as refused:
        raise DeviceError(f"the network cannot be moved to {device}: {refused}") from None


def kernels(device: torch.device) -> AbstractContextManager[Any]:
    """Products of the dtype: a GPU's fused kernels may make float32 ones of TF32."""
    return nullcontext() if device.type == "cpu" else sdpa_kernel(SDPBackend.MATH)


def attest(model: StockModel, stock: Any) -> Attestation:
    """Of a loaded network's weights; refused unless the sizes imply every bit of them."""
    expected, found = model.tensors(), dict(stock.state_dict())
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected or name not in found:
            where = "not among those the sizes imply" if name in found else "missing"
            raise IntegrityError(f"{model.path}: the weight {name} is {where}")
        _compare(model, name, found[name].cpu(), expected[name])
    for name, value in model.config().items():
        loaded = getattr(stock.config, name, value)
        if name not in _NOT_BEHAVIOUR and loaded != value:
            raise IntegrityError(
                f"{model.path}: the config has {name} = {loaded!r}, the sizes imply {value!r}"
            )
    kind = stock.config._attn_implementation
    return Attestation(digest(found), digest(expected), f"transformers, {kind}")


def _compare(model: StockModel, name: str, found: Tensor, expected: Tensor) -> None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise IntegrityError(
            f"{model.path}: {name} is {tuple(found.shape)} in {found.dtype}, the sizes imply "
            f"{tuple(expected.shape)} in {expected.dtype}"
        )
    # Bits, not values: a NaN or a -0.0 that was put there is noticed too.
    kind = torch.int64 if expected.dtype == torch.float64 else torch.int32
    changed = found.contiguous().view(kind) != expected.view(kind)
    if bool(changed.any()):
        first = tuple(int(i) for i in changed.nonzero()[0])
        raise IntegrityError(
            f"{model.path}: {int(changed.sum())} weight(s) of {name} are not those that the sizes "
            f"imply; the first, at {first}, is {found[first].item()!r} and should be "
            f"{expected[first].item()!r}"
        )


def _check_dtype(model: StockModel, dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype != model.spec.torch_dtype:
        raise PrecisionError(
            f"{model.path} is certified in {model.spec.dtype}, asked for "
            f"{str(dtype).removeprefix('torch.')}; write it again with the dtype you need "
            "(float64 or float32: in fewer bits nothing is certified)"
        )
    check_matmul_precision(model.spec.torch_dtype)
