"""The variables track: which directions of the stream hold a variable of the program.

At a site, a variable's token in the stream before a layer, a submission is a subspace. It is
judged by interchange: the source prompt's coordinates inside it replace the base prompt's, and the
metric should be what it is when the variable's own features are replaced. Overlap says how much of
the subspace is the variable's, or an alias's: another variable with the same numbers there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.bench.case import Case
from iceform.bench.methods import written
from iceform.bench.network import metric_rows
from iceform.bench.scoring import Scores
from iceform.errors import ProgramError, ShapeError

_DAS_STEPS = 120
_DAS_RATE = 0.05
_SAME = 1e-9  # numbers of two variables that are one
_SINGULAR = 1e-12  # what a column that depends on others leaves of the largest


@dataclass(frozen=True, eq=False)
class Site:
    """A variable at a token of the stream before a layer.

    Attributes
    ----------
    variable
        Its name in the program.
    layer, token
        Where it is held.
    subspace
        Its directions there, (width, size), orthonormal.
    aliases
        Other variables with the same numbers there.

    Examples
    --------
    >>> site = sites(load("vote.data.hard"))[0]
    >>> size = site.subspace.shape[1]
    >>> torch.allclose(site.subspace.T @ site.subspace, torch.eye(size).double())
    True
    """

    variable: str
    layer: int
    token: int
    subspace: Float[Tensor, "d k"]
    aliases: tuple[str, ...]


class Interchange:
    """Base and source prompts of a split, up to the site and from there on."""

    def __init__(self, case: Case, site: Site, split: str) -> None:
        self.case, self.site, self.net = case, site, case.compiled.network
        pairs = case.pairs(split)
        self.rows = metric_rows(self.net, pairs.words)
        self.base, self.source = (self._stream(ids) for ids in (pairs.clean, pairs.corrupt))
        self.meant = self.swapped(site.subspace)
        self.plain = self._answer(self.base)

    def _stream(self, ids: Tensor) -> Tensor:
        parts = written(self.net, self.net.start(ids))
        return parts[: 1 + self.site.layer * self.net.heads].sum(0)

    def _answer(self, stream: Tensor) -> Tensor:
        last = self.net.normed(self.net.plain(stream, self.site.layer)[..., -1, :])
        return (last * self.rows).sum(-1)

    @property
    def states(self) -> Tensor:
        """What the token holds in all prompts, (2 pairs, width)."""
        return torch.cat([self.base, self.source])[:, self.site.token]

    def swapped(self, subspace: Tensor) -> Tensor:
        """The answers when the subspace is the source's."""
        t = self.site.token
        change = (self.source[:, t] - self.base[:, t]) @ subspace @ subspace.T
        put = torch.zeros_like(self.base)
        put[:, t] = change
        return self._answer(self.base + put)

    def error(self, subspace: Tensor) -> Tensor:
        """From the answers that are meant, over what the interchange is to change."""
        off = (self.swapped(subspace) - self.meant).abs().mean()
        return off / (self.meant - self.plain).abs().mean()


def sites(case: Case) -> list[Site]:
    """Where heads have written a variable that heads or logits still read, and it matters there.

    Examples
    --------
    >>> found = sites(load("vote.data.hard"))
    >>> all(site.layer > 0 for site in found)
    True
    """
    found = []
    net, pairs = case.compiled.network, case.pairs("test")
    parts = written(net, net.start(torch.cat([pairs.clean, pairs.corrupt])))
    for name, v in case.variables.items():
        wrote = [n for n in v.written if n >= 0]
        layer = min((n + 1 for n in wrote), default=0)
        if not wrote or not [r for r in v.read if r >= layer]:
            continue
        stream = parts[: 1 + layer * net.heads].sum(0)
        spread = (stream @ v.subspace).std(0).norm(dim=-1)
        token = int(spread.argmax())
        held = stream[:, token] @ v.subspace
        aliases = tuple(
            other for other, w in case.variables.items()
            if other != name and w.size == v.size
            and bool(((stream[:, token] @ w.subspace).abs() - held.abs()).abs().max() < _SAME)
        )  # fmt: skip
        site = Site(name, layer, token, v.subspace, aliases)
        change = Interchange(case, site, "test")
        if float((change.meant - change.plain).abs().mean()) > _SAME:
            found.append(site)
    return found


def subspace_of(submission: Any, site: Site) -> Float[Tensor, "d k"]:
    """An orthonormal basis out of a tensor (width, size), or out of a featurizer of MIB.

    A featurizer is the module itself, or its state: the one matrix in it is its rotation.
    """
    if hasattr(submission, "state_dict"):
        submission = submission.state_dict()
    if isinstance(submission, Mapping):
        held = [t for t in submission.values() if isinstance(t, Tensor) and t.ndim == 2]
        if len(held) != 1:
            raise ProgramError(f"a featurizer holds one rotation, this one {len(held)} matrices")
        submission = held[0]
    found = torch.as_tensor(submission).detach().double()
    want = tuple(site.subspace.shape)
    if tuple(found.shape) != want:
        raise ShapeError(f"a subspace for {site.variable} is {want} here, got {tuple(found.shape)}")
    if not bool(found.isfinite().all()):
        raise ProgramError(f"the subspace for {site.variable} holds numbers that are not finite")
    basis: Tensor
    basis, upper = torch.linalg.qr(found)
    if float(upper.diagonal().abs().min()) < _SINGULAR * float(upper.abs().max()):
        raise ProgramError(f"the columns of the subspace for {site.variable} are not independent")
    return basis


def score_subspace(case: Case, site: Site, submission: Any, split: str = "test") -> Scores:
    """Interchange error (0 is perfect, 1 as good as nothing) and overlap, also up to aliases.

    Parameters
    ----------
    case, site
        Of :func:`sites`.
    submission
        Directions (width, size), or a featurizer of MIB.
    split
        Of the pairs that are interchanged.

    Examples
    --------
    >>> case = load("vote.data.hard")
    >>> site = sites(case)[0]
    >>> values = score_subspace(case, site, site.subspace).values
    >>> values["interchange error"] < 1e-6, round(values["overlap"], 6)
    (True, 1.0)
    """
    basis = subspace_of(submission, site)
    own = site.subspace
    wide = torch.linalg.qr(
        torch.cat([own, *(case.variables[a].subspace for a in site.aliases)], 1)
    )[0]
    size = own.shape[1]
    values = {
        "interchange error": float(Interchange(case, site, split).error(basis)),
        "overlap": float((own.T @ basis).square().sum() / size),
        "overlap up to aliases": float((wide.T @ basis).square().sum() / size),
    }
    return Scores(case.id, split, "variables", values)


# ---------------------------------------------------------------------------------------------
# methods, fitted on the train pairs
# ---------------------------------------------------------------------------------------------


def principal_components(case: Case, site: Site) -> Tensor:
    """The directions of largest variance."""
    states = Interchange(case, site, "train").states
    found: Tensor = torch.linalg.svd(states - states.mean(0), full_matrices=False)[2]
    return found[: site.subspace.shape[1]].T


def linear_probe(case: Case, site: Site) -> Tensor:
    """A ridge regression of the variable's values on the states."""
    states = Interchange(case, site, "train").states
    states, values = (x - x.mean(0) for x in (states, states @ site.subspace))
    small = 1e-6 * float(states.square().sum() / len(states)) + _SINGULAR
    gram = states.T @ states + small * torch.eye(states.shape[1], dtype=torch.float64)
    found: Tensor = torch.linalg.solve(gram, states.T @ values)
    return found


def alignment_search(case: Case, site: Site, seed: int = 0) -> Tensor:
    """DAS: a basis trained so that interchange gives the answers that are meant."""
    change = Interchange(case, site, "train")
    generator = torch.Generator().manual_seed(seed)
    free = torch.randn(site.subspace.shape, generator=generator, dtype=torch.float64)
    free.requires_grad_(True)
    optimiser = torch.optim.Adam([free], lr=_DAS_RATE)
    scale = (change.meant - change.plain).square().mean()
    best, least = free.detach().clone(), float("inf")
    for _ in range(_DAS_STEPS):
        basis = torch.linalg.qr(free)[0]
        loss = (change.swapped(basis) - change.meant).square().mean() / scale
        if float(loss.detach()) < least:
            best, least = free.detach().clone(), float(loss.detach())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return best


def random_subspace(case: Case, site: Site, seed: int = 0) -> Tensor:
    """No method at all."""
    del case
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(site.subspace.shape, generator=generator, dtype=torch.float64)


def own_subspace(case: Case, site: Site) -> Tensor:
    """The truth."""
    del case
    return site.subspace


SUBSPACE_METHODS: dict[str, Callable[[Case, Site], Tensor]] = {
    "the truth": own_subspace,
    "DAS": alignment_search,
    "linear probe": linear_probe,
    "PCA": principal_components,
    "random": random_subspace,
}
