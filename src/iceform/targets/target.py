"""Target: an algorithm written as a residual stream, whatever stock architecture holds it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.certificates import Certificate, DerivationStep, Enclosure
from iceform.codec import check_fields, encode
from iceform.errors import DtypeError, ProgramError, TargetError
from iceform.heads import Design, Vocabulary
from iceform.heads.design import mirrored, unmirrored
from iceform.targets.architectures import ARCHITECTURES, Architecture, architecture
from iceform.targets.domain import DataDomain
from iceform.targets.enclosed import Ball
from iceform.targets.rounding import KernelRounding
from iceform.validation import guard

KINDS: dict[str, type[Target]] = {}
_FEATURES = """\
network = AutoModel.from_pretrained(path)
model = ice.targets.load(path)
with torch.no_grad():
    hidden = network(inputs_embeds=model.prompt(X, y)).last_hidden_state
print(model.read(hidden))
print(ice.check(path, X, y))"""
_DATA = """\
path = "."  # this folder
torch.manual_seed(0)
X = torch.rand({samples}, {dim}, dtype=torch.float64) - 0.5
y = 0.5 * X.mean(1)

"""
_IDS = """\
network = AutoModelForCausalLM.from_pretrained(path)
model = ice.targets.load(path)
print(model.prompt(X, y))  # token ids
print(model.spec.run(network, X, y))  # what is generated after them, read
print(ice.check(path, X, y))"""


class Target(ABC):
    """An algorithm that can be written as a stock checkpoint: what it must say of itself.

    A subclass is a frozen dataclass: its sizes fix the weights, its ``defaults`` are parameters
    that are in the prompt and may be changed with every call.

    Examples
    --------
    >>> spec = LinearDescent(dim=2, steps=3)
    >>> isinstance(spec, Target), spec.kind, spec.architectures()
    (True, 'linear_descent', ('gpt2', 'llama', 'gpt_neox'))
    >>> spec.sizes()["steps"], spec.parameters()
    (3, {'lr': 0.5, 'penalty': 0.0, 'momentum': 0.0})
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    dim: int
    causal: ClassVar[bool]  # whether a token must not see those after it, or has to
    why_causal: ClassVar[str] = "nobody has written it for that architecture"
    defaults: ClassVar[tuple[str, ...]] = ()
    beside: ClassVar[tuple[str, ...]] = ()  # what a prompt may be given that has no default
    dtype: str
    positions: int

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls
        guard(cls, ("prompt", "read", "reference", "run"))

    def __post_init__(self) -> None:
        check_fields(self)
        self.torch_dtype  # noqa: B018

    @property
    @abstractmethod
    def design(self) -> Design:
        """Features and heads."""

    @abstractmethod
    def prompt(self, x: Tensor, y: Tensor, **parameters: Any) -> Tensor:
        """What the stock network is given: ``inputs_embeds``, or token ids."""

    @abstractmethod
    def read(self, out: Tensor, **parameters: Any) -> Any:
        """The answer in what the stock network returns."""

    def run(self, network: Any, x: Tensor, y: Tensor, **parameters: Any) -> Tensor:
        """The answer of a network that transformers has loaded, as one tensor."""
        given = self.prompt(x, y, **parameters).to(network.device)
        with torch.no_grad():
            hidden = network(inputs_embeds=given).last_hidden_state
        return self.flat(hidden.cpu(), **parameters)

    def flat(self, out: Tensor, **parameters: Any) -> Tensor:
        """The answer in what the stock network returns, as one tensor."""
        found: Tensor = self.read(out, **parameters)
        return found

    @abstractmethod
    def distance(self, value: Tensor, x: Tensor, y: Tensor, **parameters: Any) -> float:
        """How far an answer is from the exact algorithm's."""

    def readout(self, features: Ball, **parameters: Any) -> Ball:
        """The answer in features that are known with radii."""
        raise TargetError(f"a {self.kind} has no answer among its features")

    def check_run(self, **parameters: Any) -> None:
        """Refuse, before it runs, what could not be judged."""
        return

    def judge(
        self, value: Tensor, x: Tensor, y: Tensor, attention: str, **parameters: Any
    ) -> tuple[Certificate, float, Enclosure | None]:
        """Judge an answer: its certificate, its distance from exact, and its enclosure, if any."""
        settings = {k: v for k, v in parameters.items() if k in self.defaults}
        found = self.certificate(self.domain(x, y, **parameters), attention, **settings)
        return found, self.distance(value, x, y, **parameters), None

    def usage(self) -> str:
        """Lines of Python that run the folder on data X and y, for the card: they run there."""
        data = _DATA.format(samples=getattr(self, "samples", 2 * self.dim), dim=self.dim)
        return data + (_FEATURES if self.vocabulary() is None else _IDS)

    def vocabulary(self) -> Vocabulary | None:
        """Embeddings and readout of a model of token ids; None where features are given."""
        return None

    @abstractmethod
    def layout(self) -> list[str]:
        """The tokens of a prompt, in words, in order."""

    @abstractmethod
    def domain(self, x: Tensor, y: Tensor, **parameters: Any) -> DataDomain:
        """The bounds that hold for these data, as the network sees them."""

    @abstractmethod
    def example_domain(self) -> DataDomain | None:
        """The domain that the card quotes; None where runs are certified one by one."""

    @abstractmethod
    def certificate(
        self, domain: DataDomain, attention: str = "any", **parameters: Any
    ) -> Certificate:
        """A proven bound for all data in the domain, with this attention (any: both kinds)."""

    def certified(
        self, terms: dict[str, float], domain: dict[str, Any], a: KernelRounding,
        derivation: tuple[DerivationStep, ...], assumptions: tuple[str, ...] = (),
        compared: str = "stock network's answer - exact algorithm's",
    ) -> Certificate:  # fmt: skip
        """The certificate of an error that is the sum of these terms, in stock kernels."""
        return Certificate.total(
            terms, domain=domain, dtype=a.dtype, backend=f"transformers, {a.backend}",
            derivation=derivation, assumptions=a.assumptions + assumptions, compared=compared,
        )  # fmt: skip

    def sizes(self) -> dict[str, Any]:
        """Everything that the weights depend on, as JSON: the fields that no prompt holds."""
        said: dict[str, Any] = encode(self)
        return {name: value for name, value in said.items() if name not in self.defaults}

    def parameters(self) -> dict[str, Any]:
        """The defaults of what is in the prompt."""
        return {name: getattr(self, name) for name in self.defaults}

    def check_parameters(self, given: dict[str, Any]) -> None:
        """Refuse names that are none."""
        for name in given:
            if name not in self.defaults + self.beside:
                known = ", ".join(self.defaults) or "none"
                raise ProgramError(f"no parameter is called {name!r}; this target has {known}")

    @classmethod
    def unsuited(cls, known: Architecture) -> str:
        """Why that architecture cannot hold this; nothing where it can."""
        return cls.why_causal if known.causal != cls.causal else ""

    @classmethod
    def architectures(cls) -> tuple[str, ...]:
        """The names of those that can hold this."""
        return tuple(name for name, known in ARCHITECTURES.items() if not cls.unsuited(known))

    @classmethod
    def check_architecture(cls, name: str) -> None:
        """Refuse an architecture that cannot hold this, and say why."""
        if why := cls.unsuited(architecture(name)):
            some = ", ".join(cls.architectures())
            raise TargetError(f"{cls.kind} cannot be a {name}: {why}; use {some}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's own object."""
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise DtypeError(f'dtype is "float64" or "float32", got {self.dtype!r}')
        return found


class FeatureTarget(Target):
    """A target whose prompt is features and whose answer is read out of the last layer."""

    dim: int

    @abstractmethod
    def tokens(self, x: Tensor, y: Tensor, **parameters: Any) -> Float[Tensor, "t f"]:
        """The prompt, as features in float64."""

    @abstractmethod
    def answer(self, features: Float[Tensor, "t f"]) -> Tensor:
        """The answer in the last layer's features."""

    @abstractmethod
    def reference(self, x: Tensor, y: Tensor, **parameters: Any) -> Tensor:
        """The exact algorithm's answer, rounded once to float64."""

    def readout(self, features: Ball, **parameters: Any) -> Ball:
        """Answers that are features themselves; others say what becomes of the radii."""
        return Ball(self.answer(features.center), self.answer(features.radius))

    def prompt(self, x: Tensor, y: Tensor, **parameters: Any) -> Float[Tensor, "1 t h"]:
        tokens = self.tokens(x, y, **parameters)
        return mirrored(self.design, tokens)[None].to(self.torch_dtype)

    def read(self, out: Float[Tensor, "1 t h"], **parameters: Any) -> Tensor:
        return self.answer(unmirrored(self.design, out)[0])

    def distance(self, value: Tensor, x: Tensor, y: Tensor, **parameters: Any) -> float:
        exact = self.reference(x.to(self.torch_dtype), y.to(self.torch_dtype), **parameters)
        return largest(value - exact)


def largest(off: Tensor) -> float:
    """The largest absolute entry; infinite where one is NaN."""
    most = float(off.abs().max())
    return most if math.isfinite(most) else math.inf
