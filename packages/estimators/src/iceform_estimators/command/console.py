"""How runs, explanations and the catalogue read in a terminal: plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from iceform.arithmetic import at_most
from iceform_estimators.algorithms import kinds
from iceform_estimators.command.explaining import Explanation, PromptView, frozen_numbers
from iceform_estimators.command.running import TableRun
from iceform_estimators.tables import counted

SHOWN = 12  # coefficients, the largest ones
_FEW = 4  # entries of a vector; tokens beside the one that is read most, and at both ends
_BAR = 16  # characters of a full attention weight
_COEFFICIENT = "no coefficient is"
_LOOP = ("tol", "max_passes", "precondition")
SAID = {"proven": "Certified", "estimated": "Estimated", "claimed": "Claimed"}
_PARTS = {
    "train": "to learn from",
    "test": "to test",
    "unlabelled": "without a target, predicted",
    "new": "from the other file, predicted",
}


def figure(value: float | None) -> str:
    """A number as people read it: six digits, and powers where it is tiny or huge."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "unknown"
    plain = f"{value:,.6g}"
    return f"{value:.3e}" if "e" in plain else plain


def grid(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows of cells below each other, a rule below the first row; some columns to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return " ".join(["", *cells]).rstrip()

    rule = " " + "-" * (sum(widths) + len(widths) - 1)
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:]), ""])


def catalogue() -> str:
    """One line per algorithm."""
    rows = [("algorithm", "what it is", "options")]
    for kind in kinds():
        own = [o.flag for n, o in kind.options().items() if o.command and n not in _LOOP]
        rows.append((kind.name, kind.says, " ".join(own) or "-"))
    loops = ", ".join("--" + name.replace("_", "-") for name in _LOOP)
    return (
        f"{grid(rows)}\nThose that loop also have {loops}.\n"
        "Run one: iceform run ALGORITHM --data FILE --target COLUMN"
    )


def text_of(shown: TableRun | Explanation, *, full: bool = False) -> str:
    """A run, or an explanation with every token (``full``) or those that matter."""
    return _of_run(shown) if isinstance(shown, TableRun) else _of_explanation(shown, full)


# ---------------------------------------------------------------------------------------------
# a run
# ---------------------------------------------------------------------------------------------


def _of_run(run: TableRun) -> str:
    entry = run.settings.entry
    goal = f" for {run.target!r}" if run.target and entry.needs_target() else ""
    parts = [f"{entry.name} on {run.source}{goal}: {entry.says}\n", _data(run), _scores(run)]
    return "\n".join([*parts, *_coefficients(run), *proven(run)])


def _data(run: TableRun) -> str:
    counts = ", ".join(f"{count:,} {_PARTS[name]}" for name, count in run.counts.items())
    rows = [("the data", ""), ("rows", counts), *run.data.preparation.summary()]
    for one in run.data.unknowns:
        times = "" if one["count"] == 1 else f" ({one['count']} times)"
        rows.append(("unknown value", f"{one['column']} = {one['value']}{times}: zeros"))
    return grid([*rows, ("SHA-256 as read", run.data_digest[:16])])


def _scores(run: TableRun) -> str:
    peer = run.peer
    rows = [[f"on the {run.data.scored} rows", "iceform"]]
    rows += [[score.name, figure(score.ours)] for score in run.scores]
    rows.append(["seconds", f"{run.seconds:.2f}"])
    if peer is not None:
        theirs = [figure(score.peer) for score in run.scores]
        beside = [peer.name.rpartition(".")[2], *theirs, f"{peer.seconds:.2f}"]
        rows = [[*row, cell] for row, cell in zip(rows, beside, strict=True)]
    return grid(rows, right=(1, 2))


def _coefficients(run: TableRun) -> list[str]:
    kept = sorted((c for c in run.coefficients if c.value), key=lambda c: -abs(c.value))
    if not kept:
        return []
    zeros = len(run.coefficients) - len(kept)
    title = f"largest of {len(kept)} coefficients" if len(kept) > SHOWN else "coefficients"
    title += f" ({zeros} {'is' if zeros == 1 else 'are'} zero)" if zeros else ""
    theirs = kept[0].peer is not None
    rows = [[title, "iceform", "scikit-learn"]]
    rows += [[c.name, figure(c.value), figure(c.peer)] for c in kept[:SHOWN]]
    if run.intercept is not None:
        rows.append(["intercept", figure(run.intercept), ""])
    return [grid([row if theirs else row[:2] for row in rows], right=(1, 2))]


def proven(run: TableRun) -> list[str]:
    """What is proven, what was measured, and on which weights: one sentence each."""
    model = run.model
    passes = counted(int(model.n_passes_), "pass", "passes")
    lines = [_bound(run), *_measured(run)]
    lines.append(f"{passes} of frozen weights, SHA-256 {model.digest_[:16]}.")
    lines += model.attestation_.explain().splitlines()[1:]
    if model.ledger_.host:
        lines.append(f"On the host: {'; '.join(model.ledger_.host)}.")
    return lines


def _bound(run: TableRun) -> str:
    certificate, what = run.certificate, subject(run)
    if not math.isfinite(certificate.error):
        reasons = [s.why for s in certificate.derivation if not math.isfinite(s.value)]
        return f"No bound could be proven here{': ' + reasons[0] if reasons else ''}."
    relative = ""
    if what == _COEFFICIENT and run.largest:
        share = math.nextafter(certificate.error / run.largest, math.inf)
        relative = f" ({at_most(share, '.1e')} of the largest)"
    most = at_most(certificate.error, ".2e")
    said = f"{SAID[certificate.kind]}: {what} off by more than {most}{relative}."
    if certificate.kind != "proven":
        said += f" Not proven: it takes for granted that {'; '.join(certificate.assumptions)}."
    return said


def _measured(run: TableRun) -> list[str]:
    entry, peer = run.settings.entry, run.peer
    if peer is None:
        return []
    if peer.distance is None and entry.task == "classification":
        return [f"Measured: {1 - peer.apart:.1%} of the labels are scikit-learn's."]
    if peer.distance is None:
        return [f"Measured: scikit-learn's answers are within {at_most(peer.apart, '.2e')}."]
    differs = entry.peer.differs if entry.peer else ""
    if not differs and subject(run) == _COEFFICIENT and peer.distance > run.certificate.error:
        differs = "its iteration stopped that much earlier"
    note = f" ({differs})" if differs else ""
    return [
        f"Measured: scikit-learn's coefficients are within {at_most(peer.distance, '.2e')}{note}."
    ]


def subject(run: TableRun) -> str:
    """What the certificate is about, as the start of a sentence."""
    if "fitted values" in str(run.certificate.domain.get("what", "")):
        return "the coefficients are not unique; no fitted value is"
    if run.settings.entry.task == "decomposition":
        return "no component is"
    return _COEFFICIENT if run.coefficients else "no prediction is"


# ---------------------------------------------------------------------------------------------
# an explanation
# ---------------------------------------------------------------------------------------------


def _of_explanation(shown: Explanation, full: bool) -> str:
    model, (rows, features) = shown.model, shown.data.x["train"].shape
    machine, passes = model.machine_, int(model.n_passes_)
    parts = [
        f"{shown.entry.name}: {shown.entry.says}\n  {shown.entry.objective}",
        f"On {shown.source}: {rows:,} samples of {features:,} features. The frozen layer has "
        f"{frozen_numbers(machine):,} numbers (SHA-256 {machine.digest[:16]}); a prompt has "
        f"{machine.samples} blocks of {machine.tokens} tokens and {machine.samples} queries.",
        *(_of_prompt(view, full) for view in shown.prompts),
        f"\nThe certificate, after {counted(passes, 'pass', 'passes')} over the data\n",
    ]
    proofs = (model.certificate_, model.attestation_, model.ledger_)
    return "\n".join([*parts, *(proof.explain() + "\n" for proof in proofs)])


def _of_prompt(view: PromptView, full: bool) -> str:
    *seen, query = view.tokens
    looked_up = "table" in seen[0]
    headers = (
        ("token", "z", "s", "bias", "v") if looked_up else ("token", "", "key", "bias", "value")
    )
    rows = [[*headers, "attention"]]
    kept = range(len(seen)) if full else _shown(seen)
    for place, k in enumerate(kept):
        if place and kept[place - 1] != k - 1:
            rows.append(["...", *[""] * 5])
        rows.append(_cells(seen[k]))
    limit = view.certified
    bound = "" if limit is None else f", {view.kind}: at most {at_most(limit, '.0e')}"
    first = seen[0]
    return "\n".join([
        f"\nPrompt: {view.title}",
        view.says,
        "",
        grid(rows, right=range(5) if looked_up else (0, 3)),
        f"Token {first['number']} in full: key_x = {_vector(first['key_x'])}, key_y = "
        f"{first['key_y']:.4g}, key_bias = {first['key_bias']:.4g}, value = "
        f"{_vector(first['value'])}",
        f"The query, token {query['number']}: w = {_vector(query['w'])}",
        f"It does not see the other {view.total - len(view.tokens):,} of {view.total:,} tokens.",
        f"The frozen matrices return {_vector(view.answer)}",
        f"The exact answer is        {_vector(view.exact)}",
        f"Largest difference over all queries: {view.off:.0e}{bound}",
    ])  # fmt: skip


def _shown(seen: Sequence[dict[str, Any]]) -> list[int]:
    """Both ends, and what is read most."""
    best = max(range(len(seen)), key=lambda k: seen[k]["weight"])
    near = (0, best, len(seen) - 1)
    return [k for k in range(len(seen)) if min(abs(k - at) for at in near) < _FEW]


def _cells(token: dict[str, Any]) -> list[str]:
    weight, bias = token["weight"], f"{token['key_bias']:.3g}"
    share = f"{weight:.3f}"
    share = f"{share} {'█' * round(_BAR * weight)}" if float(share) else f"{weight:.0e}"
    if "table" in token:
        z, s, v = (f"{value:.4g}" for value in token["table"])
        return [str(token["number"]), z, s, bias, v, share]
    key, value = _vector(token["key_x"]), f"{token['value'][0]:.4g}"
    return [str(token["number"]), token["role"], key, bias, value, share]


def _vector(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value + 0.0:.3g}" for value in values[:_FEW])  # no -0
    return f"({shown}{', …' if len(values) > _FEW else ''})"
