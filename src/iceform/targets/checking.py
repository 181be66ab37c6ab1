"""check: load a folder with transformers, run it, and hold it to what is claimed.

The weights are attested: they are rebuilt from the recorded sizes and compared, bit for bit, with
those that transformers has in memory, and so is every setting of the config. Then the prompt is
run and the answer compared with the exact algorithm, in ball arithmetic but for a function of the
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
from iceform.arithmetic import at_most
from iceform.certificates import Attestation, Certificate, Enclosure
from iceform.errors import DeviceError, IntegrityError, PrecisionError, ProgramError
from iceform.targets.folder import CONFIG, StockModel, digest, load
from iceform.validation import (
    check_choice,
    check_matmul_precision,
    check_positive,
    dtype_name,
    full_precision,
    plain_tensor,
)

# Where it came from and what wrote it; the dtype is that of the weights, which are compared.
_NOT_BEHAVIOUR = {
    "_name_or_path", "_from_model_config", "transformers_version", "architectures", "dtype",
    "torch_dtype", "iceform",
}  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes
    ----------
    value
        The stock network's answer.
    measured
        Its largest distance from the exact algorithm's; of a program the proven one, of
        ``enclosure``.
    certificate
        What was proven before the run, for these data; of a program, for all data of its domain.
    attestation
        SHA-256 of the weights that ran, and of those that the sizes imply.
    enclosure
        How far the answer is from the exact program's, proven after the run; of programs alone.
    tolerance
        The distance that was stated to be good enough; None for the certificate's.

    Examples
    --------
    >>> spec = LinearDescent(dim=1, steps=2)
    >>> model = write("gpt2", spec, "descent")
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    >>> found = check("descent", x, y)
    >>> found.ok, found.measured <= found.certificate.error == found.limit
    (True, True)
    """

    value: Tensor
    measured: float
    certificate: Certificate
    attestation: Attestation
    enclosure: Enclosure | None = None
    tolerance: float | None = None

    @property
    def limit(self) -> float:
        """What the distance is held to, the stated tolerance or the certificate."""
        return self.certificate.error if self.tolerance is None else self.tolerance

    @property
    def ok(self) -> bool:
        """Whether the answer is where it was proven, or stated, to be; no infinite limit is met."""
        return bool(self.attestation.ok) and self.measured <= self.limit < math.inf

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "within" if self.ok else "OUTSIDE"
        known = self.certificate
        said = f"the certified {at_most(known.error, '.2e')} ({known.kind}"
        if self.tolerance is not None:
            said = f"the stated {self.tolerance:.2e} (certified {at_most(known.error, '.2e')}"
        elif not math.isfinite(known.error):
            verdict, said = "NOT HELD", "to anything: nothing is certified, state within= (inf"
        what = "measured" if self.enclosure is None else "enclosed"
        dtype = dtype_name(known.dtype)
        return (
            f"{what} {self.measured:.2e}, {verdict} {said}, {known.backend}, {dtype})\n"
            f"{self.attestation.explain()}"
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
    within: float | None = None,
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
    within
        The distance from the exact answer that is good enough; None for the certificate's. Without
        one, an infinite certificate is never ok.
    parameters
        What is in the prompt: step size, penalty and the like.

    Raises
    ------
    IntegrityError
        If a weight or a setting is not the one that the recorded sizes imply.
    PrecisionError
        If nothing is certified: another dtype, or data too large.

    Examples
    --------
    >>> spec = ice.targets.LinearDescent(dim=1, steps=2)
    >>> model = ice.targets.write("gpt2", spec, "descent")
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    >>> print(ice.check("descent", x, y, lr=0.3))
    measured ..., within the certified ... (proven, transformers, sdpa, float64)
    ...
    """
    x, y = plain_tensor("X", x), plain_tensor("y", y)
    check_choice("attention", attention, ("eager", "sdpa"))
    if within is not None:
        check_positive("within", within)
    model = load(path)
    _check_dtype(model, dtype)
    _check_files(model)
    stock = _moved(network(model, attention, dtype), torch.device(device))
    found = attest(model, stock)
    model.spec.check_run(**parameters)
    if within is None:
        _check_certified(model, x, y, attention, parameters)
    with kernels(torch.device(device)):
        value = model.spec.run(stock, x, y, **parameters)
    certificate, measured, enclosure = model.spec.judge(value, x, y, attention, **parameters)
    return Checked(value, measured, certificate, found, enclosure, within)


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
    if model.spec.example_domain() is None:
        return
    certificate = model.certificate(x, y, attention, **parameters)
    if not math.isfinite(certificate.error):
        raise PrecisionError(
            f"nothing is certified for these data in {model.spec.dtype} ({certificate.domain}); "
            "scale them down, take a smaller step, or write the target in float64"
        )


def network(model: StockModel, attention: str = "sdpa", dtype: torch.dtype | None = None) -> Any:
    """The folder as transformers loads it, ready to be run.

    Parameters
    ----------
    model
        The folder.
    attention
        "eager" or "sdpa".
    dtype
        To load in; None for the folder's own.

    Returns
    -------
    PreTrainedModel
        An ``AutoModel``, or an ``AutoModelForCausalLM`` where prompts are token ids.

    Examples
    --------
    >>> model = write("gpt2", LinearDescent(dim=1, steps=2), "descent")
    >>> type(network(model)).__name__, network(model).config.n_layer
    ('GPT2Model', 2)
    """
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
    """Compare a loaded network's weights and settings with those that the recorded sizes imply.

    Parameters
    ----------
    model
        The folder.
    stock
        What transformers has loaded from it.

    Raises
    ------
    IntegrityError
        That names the first weight or setting that differs, by one bit.

    Examples
    --------
    >>> model = write("gpt2", LinearDescent(dim=1, steps=2), "descent")
    >>> attest(model, network(model)).ok
    True
    """
    config, expected = model.files()
    found = dict(stock.state_dict())
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected or name not in found:
            where = "not among those the sizes imply" if name in found else "missing"
            raise IntegrityError(f"{model.path}: the weight {name} is {where}")
        _compare(model, name, found[name].cpu(), expected[name])
    _compare_settings(model, config, stock)
    kind = stock.config._attn_implementation
    return Attestation(digest(found), digest(expected), f"transformers, {kind}", literal=True)


def _compare_settings(model: StockModel, config: dict[str, Any], stock: Any) -> None:
    """Refuse any setting, of the network or of its decoding, that the sizes do not imply.

    What a version of transformers adds by itself it adds to the implied config too: both are made
    by the same class.
    """
    implied = type(stock.config).from_dict(config)
    pairs = [(CONFIG, stock.config.to_dict(), implied.to_dict())]
    if model.spec.vocabulary() is not None:
        decoding = stock.generation_config
        meant = type(decoding).from_model_config(implied)
        pairs.append(("generation config", _switched_on(decoding), _switched_on(meant)))
    for where, loaded, meant_settings in pairs:
        for name in sorted((loaded.keys() | meant_settings.keys()) - _NOT_BEHAVIOUR):
            one, other = (part.get(name, "absent") for part in (loaded, meant_settings))
            if one != other:
                raise IntegrityError(
                    f"{model.path}: the {where} has {name} = {one!r}, the sizes imply {other!r}"
                )


def _switched_on(decoding: Any) -> dict[str, Any]:
    """Settings of decoding; one that is None is off, as one that is False."""
    return {k: v for k, v in decoding.to_dict().items() if v is not None and v is not False}


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
