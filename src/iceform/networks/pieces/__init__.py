r"""What a network is made of, each piece in context.

A piece knows the exact map it stands for, the range it was calibrated on, its certified error on
that range, and how an error at its input grows. Errors are bounds of every entry, so that moves
leave them alone: an entry off by e is off by at most :math:`\max_r \|W_r\|_1 e` behind a linear
map, L e behind an L-Lipschitz activation, :math:`\sqrt d \max|\gamma|\, e / (s - e)` behind a
LayerNorm whose denominator is at least s.
"""

from iceform.networks.pieces.base import Bounds as Bounds
from iceform.networks.pieces.base import Piece as Piece
from iceform.networks.pieces.base import PieceSettings as PieceSettings
from iceform.networks.pieces.elementwise import Activation as Activation
from iceform.networks.pieces.elementwise import Gate as Gate
from iceform.networks.pieces.elementwise import TabulatedActivation as TabulatedActivation
from iceform.networks.pieces.elementwise import make_activation as make_activation
from iceform.networks.pieces.embedding import EmbeddingMap as EmbeddingMap
from iceform.networks.pieces.heads import AttentionPiece as AttentionPiece
from iceform.networks.pieces.linear import LinearMap as LinearMap
from iceform.networks.pieces.norms import Norm as Norm
from iceform.networks.pieces.products import ProductPiece as ProductPiece
