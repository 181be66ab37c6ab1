"""Networks in context as plain data and tensors: what a folder or a pickle holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from iceform.codec import decode, encode
from iceform.errors import IntegrityError
from iceform.networks.frozen import FrozenLayers, NetworkSizes, identity_table
from iceform.networks.graph import graph_from
from iceform.networks.model import NetworkModel
from iceform.networks.pieces import Piece, PieceSettings
from iceform.networks.structure import Signature
from iceform.run import resolve
from iceform.validation import check_choice, check_dtype, check_eps, check_positive

if TYPE_CHECKING:
    from iceform.networks.network import InContext


_SETTINGS = ("eps", "dtype", "backend", "headroom", "on_range")


def pack(network: InContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Everything that :func:`unpack` needs: a JSON-ready config and the prompts' tensors."""
    s = network.settings
    config = {
        "title": network.model.title,
        "arguments": network.model.signature.parameters,
        "graphs": [encode(g) for g in network.model.graphs],
        "settings": encode({name: getattr(s, name) for name in _SETTINGS}),
        "sizes": encode(network.frozen.sizes),
        "pieces": [
            {"name": p.name, "kind": p.kind, "made": p.config(), "ranges": p.ranges()}
            for p in network.pieces
        ],
        "not_emulated": network.model.left,
        "certificate": network.certificate.to_dict(),
        "digest": network.digest,
    }
    return config, dict(network.model.state_dict())


def unpack(config: dict[str, Any], tensors: dict[str, Tensor]) -> NetworkModel:
    """The inverse of :func:`pack`."""
    given = config["settings"]
    settings = PieceSettings(
        eps=check_eps(given["eps"]),
        dtype=check_dtype(getattr(torch, given["dtype"], None)),
        backend=resolve(given["backend"]),
        headroom=check_positive("headroom", given["headroom"]),
        on_range=check_choice("on_range", given["on_range"], ("raise", "widen")),
    )
    model = NetworkModel(settings, Signature(config["arguments"]), None, title=config["title"])
    model.graphs = [graph_from(g) for g in config["graphs"]]
    model.left, model.settled = dict(config["not_emulated"]), True
    _restore(model, config, tensors)
    return model


def _restore(model: NetworkModel, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    settings = model.settings
    table = identity_table(settings.eps, settings.dtype)
    sizes = decode(NetworkSizes, config["sizes"])
    settings.frozen = FrozenLayers(sizes, table, settings.dtype)
    # Pieces may stand below others: those above come first.
    for saved in sorted(config["pieces"], key=lambda saved: str(saved["name"]).count(".")):
        model.place(saved["name"], _made(saved, tensors, settings))
    held = {k: t for k, t in tensors.items() if k.startswith("constants.")}
    if held:
        model.add_module("constants", holder := nn.Module())
        for name, tensor in held.items():
            holder.register_buffer(name.removeprefix("constants."), tensor)
    settings.loading = True
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as broken:
        raise IntegrityError(f"the prompts do not fit the network: {broken}") from None
    finally:
        settings.loading = False
    pieces = {piece.name: piece for piece in model.pieces}
    for saved in config["pieces"]:
        pieces[saved["name"]].restore(saved["ranges"])
    if settings.frozen.check() != config["digest"]:
        raise IntegrityError(
            "the frozen layers that this version builds are not the ones that were saved"
        )


def _made(saved: dict[str, Any], tensors: dict[str, Tensor], settings: PieceSettings) -> Piece:
    """A piece from its description and its tensors."""
    name, kind, made = str(saved["name"]), saved["kind"], saved["made"]
    try:
        if kind in Piece.kinds:
            return Piece.kinds[kind].made(name, settings, tensors, made)
    except (KeyError, TypeError, ValueError) as broken:
        raise IntegrityError(f"not the description of a piece: {broken!r}") from None
    raise IntegrityError(f"{kind!r} is no kind of piece")
