"""The proof of a text machine, one room for each thing that is proven.

``stream``: norm, weights and what rounding does to a row. ``numbers``: every level, every function,
and how far results keep from boundaries. ``heads``: where each head looks, and what it carries.
``words``: the language-model head, and the certificate of all of it. ``rotary``: what differs where
positions turn queries and keys. ``weights``: stored tensors by what they are for.
"""

from __future__ import annotations

from torch import Tensor

from iceform.targets.text.certificate import TextCertificate
from iceform.targets.text.layers import TextLayers
from iceform.targets.text.proof.rotary import RotaryProof
from iceform.targets.text.proof.words import WordProof
from iceform.targets.text.rotary import RotaryLayers


def certify(layers: TextLayers, embedding: Tensor, tensors: dict[str, Tensor]) -> TextCertificate:
    """What is proven of these tensors as the machine of this design with these words."""
    proof = RotaryProof if isinstance(layers, RotaryLayers) else WordProof
    return proof(layers, embedding, tensors).certificate()
