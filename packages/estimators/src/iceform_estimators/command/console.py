"""How runs, explanations and the catalogue read in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as Grid

from iceform.arithmetic import at_most
from iceform_estimators.algorithms import kinds
from iceform_estimators.command.explaining import Explanation, PromptView, TokenView
from iceform_estimators.command.running import Run

_COEFFICIENTS = 10  # the largest, that a terminal shows
_ENTRIES = 4  # of a vector
_EDGE = 3  # tokens shown at either end of a long block
_AROUND = 4  # tokens shown on either side of the one that is read most
_BAR = 16  # characters of a full attention weight
_COEFFICIENT = "no coefficient is"
_UNKNOWN = 6  # values that no training row has, that a terminal lists
_LEAST = 5e-4  # of a weight that three digits show
SAID = {"proven": "Certified", "estimated": "Estimated", "claimed": "Claimed"}


def figure(value: float | None) -> str:
    """A number as people read it: six digits, and powers where it is tiny or huge."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "unknown"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:,.6g}"
    return f"{value:.3e}"


def _grid(*headers: str, title: str | None = None, right: Iterable[int] = ()) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for place, header in enumerate(headers):
        grid.add_column(header, justify="right" if place in set(right) else "left")
    return grid


# ---------------------------------------------------------------------------------------------
# the catalogue
# ---------------------------------------------------------------------------------------------


def print_catalogue(console: Console) -> None:
    """One line per algorithm."""
    grid = _grid("algorithm", "what it is", "options")
    for entry in kinds():
        own = [o.flag for n, o in entry.options().items() if o.command and n not in _LOOP]
        grid.add_row(f"[bold]{entry.name}[/bold]", entry.says, " ".join(own) or "-")
    console.print(grid)
    loops = ", ".join("--" + n.replace("_", "-") for n in _LOOP)
    console.print(f"Those that loop also have {loops}.", highlight=False)
    console.print("Run one: iceform run ALGORITHM --data FILE --target COLUMN", highlight=False)


_LOOP = ("tol", "max_passes", "precondition")


# ---------------------------------------------------------------------------------------------
# a run
# ---------------------------------------------------------------------------------------------


def print_run(console: Console, run: Run) -> None:
    """Data, scores, coefficients and what is proven."""
    entry = run.settings.entry
    goal = f" for {run.target!r}" if run.target and entry.needs_target() else ""
    console.print(f"[bold]{entry.name}[/bold] on {run.source}{goal}: {entry.says}")
    _print_data(console, run)
    _print_scores(console, run)
    _print_coefficients(console, run)
    for sentence in proven(run):
        console.print(sentence, highlight=False)


def _print_data(console: Console, run: Run) -> None:
    grid = _grid("the data", "")
    counts = {name: count for name, count in run.counts.items() if count}
    words = {
        "train": "to learn from",
        "test": "to test",
        "unlabelled": "without a target, predicted",
        "new": "from the other file, predicted",
    }
    grid.add_row("rows", ", ".join(f"{count:,} {words[name]}" for name, count in counts.items()))
    for what, how in run.preparation.summary():
        grid.add_row(what, how)
    for unknown in run.unknowns[:_UNKNOWN]:
        times = "" if unknown.count == 1 else f" ({unknown.count} times)"
        grid.add_row("unknown value", f"{unknown.column} = {unknown.value}{times}: zeros")
    if len(run.unknowns) > _UNKNOWN:
        grid.add_row("", f"and {len(run.unknowns) - _UNKNOWN} more")
    for note in run.notes:
        grid.add_row("note", note)
    grid.add_row("SHA-256 as read", run.data_digest[:16])
    console.print(grid)


def _print_scores(console: Console, run: Run) -> None:
    peer = run.peer
    beside = [] if peer is None else [peer.name.rpartition(".")[2]]
    grid = _grid(f"on the {run.scored} rows", "iceform", *beside, right=(1, 2))
    for score in run.scores:
        grid.add_row(score.name, figure(score.ours), *([figure(score.peer)] if peer else []))
    grid.add_row("seconds", f"{run.seconds:.2f}", *([f"{peer.seconds:.2f}"] if peer else []))
    console.print(grid)


def _print_coefficients(console: Console, run: Run) -> None:
    ranked = sorted(run.coefficients, key=lambda c: -abs(c.value))
    kept = [c for c in ranked if c.value != 0]
    if not kept:
        return
    theirs = kept[0].peer is not None
    title = f"largest of {len(kept)} coefficients" if len(kept) > _COEFFICIENTS else "coefficients"
    if len(kept) < len(ranked):
        zeros = len(ranked) - len(kept)
        title += f" ({zeros} {'is' if zeros == 1 else 'are'} zero)"
    headers = ("iceform", "scikit-learn") if theirs else ("iceform",)
    grid = _grid(title, *headers, right=(1, 2))
    for c in kept[:_COEFFICIENTS]:
        grid.add_row(c.name, figure(c.value), *([figure(c.peer)] if theirs else []))
    if run.intercept is not None:
        grid.add_row("intercept", figure(run.intercept))
    console.print(grid)


def proven(run: Run) -> list[str]:
    """What is proven, what was measured, and on which weights: one sentence each."""
    entry, certificate, peer = run.settings.entry, run.certificate, run.peer
    what = subject(run)
    if math.isfinite(certificate.error):
        relative = ""
        if what == _COEFFICIENT and run.largest:
            share = math.nextafter(certificate.error / run.largest, math.inf)
            relative = f" ({at_most(share, '.1e')} of the largest)"
        said = SAID[certificate.kind]
        first = f"{said}: {what} off by more than {at_most(certificate.error, '.2e')}{relative}."
        if certificate.kind != "proven":
            first += f" Not proven: it takes for granted that {'; '.join(certificate.assumptions)}."
    else:
        reasons = [s.why for s in certificate.derivation if not math.isfinite(s.value)]
        first = f"No bound could be proven here{': ' + reasons[0] if reasons else ''}."
    lines = [first]
    if peer is not None and peer.distance is not None:
        differs = entry.peer.differs if entry.peer else ""
        note = f" ({differs})" if differs else ""
        if not differs and what == _COEFFICIENT and peer.distance > certificate.error:
            note = " (its iteration stopped that much earlier)"
        near = at_most(peer.distance, ".2e")
        lines.append(f"Measured: scikit-learn's coefficients are within {near}{note}.")
    elif peer is not None and entry.task == "classification":
        lines.append(f"Measured: {1 - peer.apart:.1%} of the labels are scikit-learn's.")
    elif peer is not None:
        lines.append(f"Measured: scikit-learn's answers are within {at_most(peer.apart, '.2e')}.")
    passes = f"{run.passes:,} pass{'' if run.passes == 1 else 'es'}"
    lines.append(f"{passes} of frozen weights, SHA-256 {run.digest[:16]}.")
    lines += run.attestation.explain().splitlines()[1:]
    if run.ledger.host:
        lines.append(f"On the host: {'; '.join(run.ledger.host)}.")
    return lines


def subject(run: Run) -> str:
    """What the certificate is about, as the start of a sentence."""
    if "fitted values" in str(run.certificate.domain.get("what", "")):
        return "the coefficients are not unique; no fitted value is"
    if run.settings.entry.task == "decomposition":
        return "no component is"
    return _COEFFICIENT if run.coefficients else "no prediction is"


# ---------------------------------------------------------------------------------------------
# an explanation
# ---------------------------------------------------------------------------------------------


def print_explanation(console: Console, found: Explanation, *, full: bool) -> None:
    """Prompts, token by token, then the certificate."""
    entry, machine = found.entry, found.machine
    rows, features = found.shape
    console.print(f"[bold]{entry.name}[/bold]: {entry.says}")
    console.print(f"  {entry.objective}", highlight=False)
    console.print(
        f"On {found.source}: {rows:,} samples of {features:,} features. The frozen layer has "
        f"{found.parameters:,} numbers (SHA-256 {machine.digest[:16]}); a prompt has "
        f"{machine.samples} blocks of {machine.tokens} tokens and {machine.samples} queries.",
        highlight=False,
    )
    for view in found.prompts:
        _print_prompt(console, view, full=full)
    passes = "one pass" if found.passes == 1 else f"{found.passes:,} passes"
    console.print(f"\n[bold]The certificate[/bold], after {passes} over the data\n")
    for part in (found.certificate, found.attestation, found.ledger):
        console.print(part.explain() + "\n", highlight=False, markup=False, soft_wrap=True)


def _print_prompt(console: Console, view: PromptView, *, full: bool) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    console.print(f"\n[bold]Prompt: {view.title}[/bold]")
    say(view.says)
    *seen, query = view.tokens
    looked_up = seen[0].table is not None
    headers = (
        ("token", "z", "s", "bias", "v") if looked_up else ("token", "", "key", "bias", "value")
    )
    grid = _grid(*headers, "attention", right=range(5) if looked_up else (0, 3))
    for group in [seen] if full else _shown(seen):
        for token in group:
            grid.add_row(*_cells(token))
        if not full and group[-1] is not seen[-1]:
            grid.add_row("...")
    console.print(grid)
    say(f"Token {seen[0].number} in full: {_spelled(seen[0])}")
    say(f"The query, token {query.number}: w = {_vector(query.w or ())}")
    say(f"It does not see the other {view.total - len(view.tokens):,} of {view.total:,} tokens.")
    say(f"The frozen matrices return {_vector(view.answer)}")
    limit = (
        "" if view.certified is None else f", {view.kind}: at most {at_most(view.certified, '.0e')}"
    )
    say(f"The exact answer is        {_vector(view.exact)}")
    say(f"Largest difference over all queries: {view.off:.0e}{limit}")


def _spelled(token: TokenView) -> str:
    return (
        f"key_x = {_vector(token.key_x)}, key_y = {token.key_y:.4g}, "
        f"key_bias = {token.key_bias:.4g}, value = {_vector(token.value)}"
    )


def _shown(seen: Sequence[TokenView]) -> list[Sequence[TokenView]]:
    """Both ends and what is read most, as runs of neighbours."""
    best = max(range(len(seen)), key=lambda k: seen[k].weight or 0.0)
    keep = sorted(
        {k for k in range(len(seen)) if k < _EDGE or k >= len(seen) - _EDGE}
        | {k for k in range(best - _AROUND, best + _AROUND + 1) if 0 <= k < len(seen)}
    )
    runs: list[list[TokenView]] = []
    for place, k in enumerate(keep):
        if place and keep[place - 1] == k - 1:
            runs[-1].append(seen[k])
        else:
            runs.append([seen[k]])
    return list(runs)


def _cells(token: TokenView) -> list[str]:
    weight = token.weight or 0.0
    bar = "█" * round(_BAR * weight)
    share = f"{weight:.3f} {bar}" if weight >= _LEAST else f"{weight:.0e}"
    bias = f"{token.key_bias:.3g}"
    if token.table is not None:
        z, s, v = (f"{value:.4g}" for value in token.table)
        return [str(token.number), z, s, bias, v, share]
    key, value = _vector(token.key_x), f"{token.value[0]:.4g}"
    return [str(token.number), token.role, key, bias, value, share]


def _vector(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value + 0.0:.3g}" for value in values[:_ENTRIES])  # no -0
    return f"({shown}{', …' if len(values) > _ENTRIES else ''})"
