r"""Study 3: lasso, ridge and least squares by one trained model, the coefficients in the prompt.

In the script the labels are :math:`\langle x, w\rangle` plus noise with w given, for all three
"algorithms": one bilinear task. In ``as_the_theorem_asks`` each algorithm is fitted on a context of
(x, y) pairs, the model sees the context and the algorithm's coefficients, and its fidelity to the
algorithm's predictions is measured as well as its error on the labels. Beside it stand models that
see the context and not the coefficients: a vector of each algorithm, learnt with the rest, is their
prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from iceform.certificates import Ledger, Result
from studies.algorithms import lasso, least_squares, ridge
from studies.networks import InContext, Network, Parameters, SelfAttention
from studies.randomness import generator, shared, take
from studies.study import (
    ABLATIONS,
    Plan,
    Record,
    Spec,
    Study,
    Trainable,
    ablated,
    chunks,
    frozen_notes,
    mse_and_r2,
    split_seeds,
    stacked,
)
from studies.training import SCHEDULES, Curves

if TYPE_CHECKING:
    from iceform_estimators.machine import Machine

__all__ = ["ALGORITHMS", "StatisticsSpec", "StatisticsStudy"]

ALGORITHMS = ("lasso", "ridge", "linear")
MODELS = ("frozen", *ALGORITHMS)  # one trained on the mixture, one baseline for each
_EVALUATED = 500  # samples at a time
_DRAWS = 5  # test draws over which the script takes its spread
# Names of the random streams, as they were when the stored cells were drawn.
_STREAMS = {"our_reading": "as_published", "as_the_theorem_asks": "as_described"}


@dataclass(frozen=True)
class StatisticsSpec(Spec):
    """Sizes of study 3.

    Attributes
    ----------
    noise
        Standard deviation of the labels' noise; 0.05 in the script, which the text leaves open.
    context
        (x, y) pairs that the algorithms are fitted on where the theorem's setting asks for them:
        twice d, since the text's n = 20 < d = 24 pairs would leave least squares without a unique
        answer. 0 for none.
    fresh
        Test samples drawn beside ``samples``, which are then all for training, as in the script.
    ridge_noises
        2 where the noise that ridge is fitted on is not the one of its labels, as in the script.
    drawn
        Whether the frozen model's algorithm is drawn for every sample, as in the script, or comes
        in turn.
    alpha_ridge, alpha_lasso
        scikit-learn's penalties; ridge's is the text's.
    in_context, in_context_epochs, in_context_seeds, in_context_hidden
        Layers of the models that are not given the coefficients (1: the study's own network), how
        long and how often they are trained, and the width of those with several layers.
    """

    hidden: int = 48
    heads: int = 6
    points: int = 60
    noise: float = 0.05
    context: int = 0
    fresh: int = 0
    ridge_noises: int = 1
    drawn: bool = False
    alpha_ridge: float = 5.0
    alpha_lasso: float = 0.5
    schedules: tuple[str, ...] = SCHEDULES
    constructed_contexts: int = 4
    in_context: tuple[int, ...] = ()
    in_context_epochs: int = 24
    in_context_seeds: int = 3
    in_context_hidden: int = 128

    @property
    def train(self) -> int:
        return self.samples if self.fresh else super().train

    @property
    def test(self) -> int:
        return self.fresh or super().test


class StatisticsStudy(Study[StatisticsSpec]):
    """thm:attn_sim_stats_methods, trained on synthetic data."""

    name: ClassVar[str] = "statistics"
    title: ClassVar[str] = "Study 3: lasso, ridge and least squares on synthetic data"
    flaws: ClassVar[tuple[str, ...]] = (
        "y is never in the context, and w is given: the label is <x, w> plus noise (0.05) for "
        "all three algorithms, so the noise floor is 0.0025 and there is one bilinear task",
        "lasso is a random mask on w, and ridge's labels are made again from its own w",
        "the published spread is over five test draws of one trained model",
    )
    read: ClassVar[str] = (
        "trains on 40,000 of the samples (the script on 50,000) and tests on the rest (the script "
        "on five draws of 1000), ridge's labels have the noise that it was fitted on (the script "
        "draws it anew), the frozen model's algorithms come in turn (drawn for every sample in the "
        "script), and the rate also decays; the baselines follow the text, the script has none"
    )
    asked: ClassVar[str] = (
        "lasso, ridge and least squares are fitted on a context of 48 pairs (twice d; the text's "
        "20 would leave least squares undetermined) with noise 1; the model sees the context, the "
        "algorithm's coefficients as the prompt, and 20 query points; it is trained on the "
        "algorithm's predictions and judged on these and on the labels"
    )

    def spec(self, column: str, scale: str) -> StatisticsSpec:
        paper = StatisticsSpec(self.name, column, scale, samples=50_000, epochs=300, seeds=5)
        if column in ("their_script", "as_published"):
            paper = replace(
                paper, schedules=("constant",), fresh=_DRAWS * 1000, ridge_noises=2, drawn=True
            )
        elif column != "our_reading":
            paper = replace(paper, context=48, noise=1.0, schedules=("cosine",))
        if column == "as_the_theorem_asks":
            paper = replace(paper, in_context=(1, 4))
        if scale != "smoke":
            return paper
        return replace(
            paper, samples=200, epochs=2, seeds=2, schedules=("constant",), constructed_contexts=1,
            fresh=40 if paper.fresh else 0, in_context_epochs=2, in_context_seeds=2,
            in_context_hidden=32,
        )  # fmt: skip

    def plans(
        self, spec: StatisticsSpec, seeds: Sequence[int], together: int
    ) -> list[Plan[StatisticsSpec]]:
        if spec.column == "constructed":
            return [Plan(spec, (("variant", "constructed"),), (s,)) for s in seeds]
        models = MODELS[:1] if spec.column == "their_script" else MODELS
        return [
            Plan(spec, (("schedule", schedule),), part, len(models))
            for schedule in spec.schedules
            for part in split_seeds(seeds, together // len(models))
        ] + [
            Plan(
                replace(spec, epochs=spec.in_context_epochs),
                (("schedule", spec.schedules[0]), ("prompt", "learnt"), ("layers", layers)),
                part,
            )
            for layers in spec.in_context
            for part in split_seeds(seeds[: spec.in_context_seeds], together)
        ]

    def build(self, plan: Plan[StatisticsSpec], device: torch.device) -> Trainable:
        return _Statistics(plan, device)

    def construct(self, plan: Plan[StatisticsSpec], seed: int) -> Record:
        return _constructed(plan, plan.spec, seed)


@dataclass(frozen=True, eq=False)
class _Data:
    """One data set: query points, labels, and each algorithm's coefficients."""

    x: Tensor  # (N, n, d)
    labels: Tensor  # (N, algorithms, n)
    coef: Tensor  # (N, algorithms, d)
    context: Tensor  # (N, m, d + 1), the pairs; m = 0 where there are none


@shared
def _drawn(spec: StatisticsSpec, seeds: tuple[int, ...], device: torch.device) -> _Data:
    """The data sets of all seeds, stacked."""
    parts = [_draw(spec, seed, device) for seed in seeds]
    return _Data(*(torch.stack([getattr(p, f.name) for p in parts]) for f in fields(_Data)))


def _draw(spec: StatisticsSpec, seed: int, device: torch.device) -> _Data:
    def normal(name: str, *shape: int) -> Tensor:
        source = generator(device, spec.study, seed, _stream(spec), name)
        return torch.randn(*shape, generator=source, device=device)

    count, n, d = spec.train + spec.test, spec.tokens, spec.dim
    x = 2 * normal("X", count, n, d) - 1
    w = normal("w", count, d)
    kept = normal("mask", count, d) > 0  # half of the entries
    if spec.context == 0:
        noise = spec.noise * normal("noise", count, len(ALGORITHMS), n)
        seen_noise = noise[:, 1]
        if spec.ridge_noises == 2:
            seen_noise = spec.noise * normal("ridge's own noise", count, n)
        shrunk = ridge(x, _dot(x, w) + seen_noise, spec.alpha_ridge).float()
        coef = torch.stack([w * kept, shrunk, w], 1)
        return _Data(x, _dot(x[:, None], coef) + noise, coef, x.new_zeros(count, 0, d + 1))
    truth = w * kept
    seen = 2 * normal("context", count, spec.context, d) - 1
    y = _dot(seen, truth) + spec.noise * normal("context noise", count, spec.context)
    fitted = lasso(seen, y, spec.alpha_lasso), ridge(seen, y, spec.alpha_ridge)
    coef = torch.stack([*fitted, least_squares(seen, y)], 1).float()
    label = _dot(x, truth) + spec.noise * normal("noise", count, n)
    labels = label[:, None].expand(-1, len(ALGORITHMS), -1)
    return _Data(x, labels, coef, torch.cat([seen, y[..., None]], -1))


def _stream(spec: Spec) -> str:
    return _STREAMS.get(spec.column, "script" if spec.column == "as_published" else spec.column)


def _dot(x: Tensor, w: Tensor) -> Tensor:
    """(..., n, d) with (..., d)."""
    return (x @ w[..., None])[..., 0]


class _Statistics(Trainable):
    """A frozen model and three baselines for each seed; no baselines where prompts are learnt."""

    def __init__(self, plan: Plan[StatisticsSpec], device: torch.device) -> None:
        spec = plan.spec
        self.plan, self.spec = plan, spec
        data = _drawn(spec, plan.seeds, device)
        self.x, self.labels, self.coef, self.context = data.x, data.labels, data.coef, data.context
        self.learnt = plan.labels.get("prompt") == "learnt"
        self.models = MODELS[: plan.models]
        # What every sample's w is replaced by: the name of an algorithm. Its image under the
        # first map is the vector that is learnt for it.
        self.names = torch.eye(len(ALGORITHMS), spec.dim, device=device)
        self.stack = stacked(
            plan, self._network(), [(model,) for model in self.models], self.batch,
            schedule=str(plan.labels["schedule"]),
        )  # fmt: skip
        self._baselines = torch.arange(len(ALGORITHMS), device=device)[:, None]
        self.mixed = torch.stack([self._algorithms(seed, device) for seed in plan.seeds])

    def _network(self) -> Network:
        """A token is [x; w], and with a context [x; w; y; whether it is of the context]."""
        spec, layers = self.spec, int(self.plan.labels.get("layers", 1))
        features = 2 * spec.dim + (2 if spec.context else 0)
        if layers > 1:
            return InContext(features, spec.tokens, spec.in_context_hidden, 4, layers, 1)
        return SelfAttention(
            features, spec.tokens + spec.context, spec.tokens, spec.hidden, spec.heads,
            spec.points + spec.context, 1, final=True,
        )  # fmt: skip

    def _algorithms(self, seed: int, device: torch.device) -> Tensor:
        """What the frozen model learns of every sample: drawn once, or in turn."""
        count = self.spec.train + self.spec.test
        if not self.spec.drawn:
            return torch.arange(count, device=device) % len(ALGORITHMS)
        source = generator(device, self.spec.study, seed, "algorithms")
        return torch.randint(len(ALGORITHMS), (count,), generator=source, device=device)

    def _tokens(self, x: Tensor, w: Tensor, context: Tensor) -> Tensor:
        """X (..., n, d), w (..., d), pairs (..., m, d + 1) as tokens (..., n + m, features)."""
        tokens = torch.cat([x, w[..., None, :].expand_as(x)], -1)
        if not self.spec.context:
            return tokens
        pairs, d = context, self.spec.dim
        prompt = w[..., None, :].expand(*pairs.shape[:-1], d)
        seen = torch.cat(
            [pairs[..., :d], prompt, pairs[..., d:], torch.ones_like(pairs[..., d:])], -1
        )
        asked = torch.cat([tokens, tokens.new_zeros(*tokens.shape[:-1], 2)], -1)
        return torch.cat([asked, seen], -2)

    def _goal(self, x: Tensor, w: Tensor, labels: Tensor) -> Tensor:
        """What is learnt: the algorithm's predictions where there is a context, or noisy labels."""
        return _dot(x, w) if self.spec.context else labels

    def batch(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The frozen model learns one algorithm of a sample, each baseline its own."""
        sets, size = index.shape
        mixed = self.mixed.gather(1, index)[:, None]
        baselines = self._baselines.expand(sets, -1, size)
        which = torch.cat([mixed, baselines], 1)[:, : len(self.models)]  # (S, models, B)
        row = torch.arange(sets, device=index.device)[:, None, None]
        at = index[:, None]
        w, labels = self.coef[row, at, which], self.labels[row, at, which]
        x = take(self.x, index)[:, None].expand(-1, len(self.models), -1, -1, -1)
        context = take(self.context, index)[:, None].expand(-1, len(self.models), -1, -1, -1)
        goal = self._goal(x, w, labels)
        prompt = self.names[which] if self.learnt else w
        return (self._tokens(x, prompt, context).flatten(0, 1),), goal.flatten(0, 1)[..., None]

    # -------------------------------------------------------------------------------- judgement

    @torch.no_grad()
    def judge(self, parameters: Parameters, curves: Curves) -> list[Record]:
        models = {
            name: {k: p[place :: len(self.models)] for k, p in parameters.items()}
            for place, name in enumerate(self.models)
        }
        metrics: list[dict[str, float]] = [{} for _ in self.plan.seeds]
        for place, algorithm in enumerate(ALGORITHMS):
            self._judge_algorithm(models, place, algorithm, metrics)
        self._between(metrics)
        return [
            Record(self.plan, seed, own, self._lines(curves, place))
            for place, (seed, own) in enumerate(zip(self.plan.seeds, metrics, strict=True))
        ]

    def _lines(self, curves: Curves, place: int) -> dict[str, list[float]]:
        first = place * len(self.models)
        return {
            f"train {model}": [float(c[first + i]) for c in curves.train]
            for i, model in enumerate(self.models)
        }

    def _judge_algorithm(
        self,
        models: dict[str, Parameters],
        place: int,
        algorithm: str,
        metrics: list[dict[str, float]],
    ) -> None:
        labels = self.labels[:, self.spec.train :, place]
        exact = _dot(self.x[:, self.spec.train :], self.coef[:, self.spec.train :, place])
        called = {"frozen": "frozen", "baseline": algorithm, "linear baseline": "linear"}
        made = {
            name: self._predict(models[model], place, "right")
            for name, model in called.items()
            if model in models
        }
        made |= {
            f"frozen, {kind} prompt": self._predict(models["frozen"], place, kind)
            for kind in ABLATIONS
        }
        for s, own in enumerate(metrics):
            for name, output in made.items():
                mse, r2 = mse_and_r2(output[s], labels[s])
                own[f"{algorithm}: {name} mse"] = mse
                own[f"{algorithm}: {name} r2"] = r2
                own[f"{algorithm}: {name} fidelity"] = mse_and_r2(output[s], exact[s])[0]
            parts = made["frozen"][s].tensor_split(_DRAWS)
            draws = [
                mse_and_r2(p, t)[0]
                for p, t in zip(parts, labels[s].tensor_split(_DRAWS), strict=True)
            ]
            own[f"{algorithm}: spread over test draws"] = float(torch.tensor(draws).std())
            own[f"{algorithm}: oracle mse"] = mse_and_r2(exact[s], labels[s])[0]
            own[f"{algorithm}: trivial mse"] = float(
                (labels[s] - labels[s].mean(0)).square().mean()
            )

    def _between(self, metrics: list[dict[str, float]]) -> None:
        """How far the algorithms' own predictions are apart."""
        x = self.x[:, self.spec.train :]
        predictions = [_dot(x, self.coef[:, self.spec.train :, a]) for a in range(len(ALGORITHMS))]
        for s, own in enumerate(metrics):
            for i, j in ((0, 1), (0, 2), (1, 2)):
                off = (predictions[i][s] - predictions[j][s]).square().mean()
                own[f"{ALGORITHMS[i]} to {ALGORITHMS[j]}"] = float(off)

    def _predict(self, parameters: Parameters, algorithm: int, prompt: str) -> Tensor:
        """(S, test, n) with the right prompt, or with another in its place."""
        parts = []
        for part in chunks(self.spec.test, _EVALUATED):
            at = slice(self.spec.train + int(part[0]), self.spec.train + int(part[-1]) + 1)
            prompts = self.coef[:, at]
            if self.learnt:
                prompts = self.names.expand(*prompts.shape)
            other = prompts[:, :, (algorithm + 1) % len(ALGORITHMS)]
            name = self.spec.study, "ablation", int(part[0])
            w = ablated(prompt, prompts[:, :, algorithm], lambda w=other: w, *name)  # type: ignore[misc]
            tokens = self._tokens(self.x[:, at], w, self.context[:, at])
            parts.append(self.stack.network(parameters, tokens)[..., 0])
        return torch.cat(parts, 1)


# ---------------------------------------------------------------------------------------------
# constructed
# ---------------------------------------------------------------------------------------------


class Answers(NamedTuple):
    """What one frozen machine answered, algorithm by algorithm."""

    results: dict[str, Result]
    ledger: Ledger


def emulate(
    machine: Machine, x: Tensor, y: Tensor, alpha_lasso: float, alpha_ridge: float, *,
    intercept: bool = False,
) -> Answers:  # fmt: skip
    """Lasso, ridge and least squares of one data set, three prompts of one machine."""
    from iceform_estimators import algorithms as programs

    asked: dict[str, programs.MachineProgram] = {
        "lasso": programs.Lasso(alpha_lasso, fit_intercept=intercept),
        "ridge": programs.Ridge(alpha_ridge, fit_intercept=intercept),
        "linear": programs.LinearRegression(fit_intercept=intercept),
    }
    results = {name: machine.run(program, x, y) for name, program in asked.items()}
    ledger = Ledger()
    for result in results.values():
        ledger.merge(result.ledger)
    return Answers(results, ledger)


def sklearn_models(alpha_lasso: float, alpha_ridge: float, *, intercept: bool) -> dict[str, Any]:
    """scikit-learn's estimators of the three algorithms."""
    from sklearn.linear_model import Lasso, LinearRegression, Ridge

    return {
        "lasso": Lasso(alpha_lasso, fit_intercept=intercept, tol=1e-12, max_iter=1_000_000),
        "ridge": Ridge(alpha_ridge, fit_intercept=intercept),
        "linear": LinearRegression(fit_intercept=intercept),
    }


def compare(name: str, result: Result, coef: Tensor, metrics: dict[str, float]) -> None:
    """Note the largest distance to scikit-learn seen so far, and what was certified for it."""
    for label, value in {
        "distance to scikit-learn": float((result.coef - coef).abs().max()),
        "certified": result.certificate.error,
        "passes": float(result.passes),
        "proven": float(result.certificate.kind == "proven"),
    }.items():
        key = f"{name}: {label}"
        worst = min if label == "proven" else max
        metrics[key] = worst(value, metrics.get(key, value))


def frozen_machine(spec: StatisticsSpec) -> Machine:
    """The machine of the constructed column: made of the number of features, nothing else."""
    from iceform_estimators.machine import Machine

    return Machine(spec.dim, layout="stream")


def _constructed(plan: Plan[StatisticsSpec], spec: StatisticsSpec, seed: int) -> Record:
    machine = frozen_machine(spec)
    small = replace(spec, samples=spec.constructed_contexts)
    data = _draw(small, seed, torch.device("cpu"))
    metrics: dict[str, float] = {}
    pairs, d = data.context.double(), spec.dim
    squares = dict.fromkeys(ALGORITHMS, 0.0)
    ledger = Ledger()
    digests = {machine.digest}
    for place in range(small.samples):
        x, y = pairs[place, :, :d], pairs[place, :, d]
        answers = emulate(machine, x, y, spec.alpha_lasso, spec.alpha_ridge)
        ledger.merge(answers.ledger)
        models = sklearn_models(spec.alpha_lasso, spec.alpha_ridge, intercept=False)
        for name, result in answers.results.items():
            coef = torch.as_tensor(models[name].fit(x.numpy(), y.numpy()).coef_)
            compare(name, result, coef, metrics)
            digests.add(result.digest)
            off = _dot(data.x[place].double(), result.coef - coef)
            squares[name] += float(off.square().mean()) / small.samples
    for name, fidelity in squares.items():
        metrics[f"{name}: frozen fidelity"] = fidelity
    (digest,) = digests
    notes = frozen_notes(digest, {"features": spec.dim, "data": "any, each proven anew"}, ledger)
    return Record(plan, seed, metrics, notes=notes)
