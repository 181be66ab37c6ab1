"""The affine maps that the paper calls Lin: new tokens out of old, or where features go."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from iceform.attention.features import Features
from iceform.errors import ShapeError

__all__ = ["Embed", "Lift"]


class Lift(nn.Module):
    r"""The affine, token-expanding map that the paper's proofs call Lin.

    .. math:: \mathrm{Lift}(Z) = \sum_l A_l Z R_l + C

    The paper calls it column-wise and strictly linear; its proofs need R_l (new tokens) and C.

    Parameters
    ----------
    feature_maps
        A_l, shape (terms, out_features, in_features).
    token_maps
        R_l, shape (terms, in_tokens, out_tokens).
    constant
        C transposed, shape (out_tokens, out_features).
    """

    feature_maps: Tensor
    token_maps: Tensor
    constant: Tensor

    def __init__(
        self,
        feature_maps: Float[Tensor, "l q p"],
        token_maps: Float[Tensor, "l n m"],
        constant: Float[Tensor, "m q"],
    ) -> None:
        super().__init__()
        if (feature_maps.ndim, token_maps.ndim, constant.ndim) != (3, 3, 2):
            raise ShapeError(
                f"feature maps {tuple(feature_maps.shape)}, token maps {tuple(token_maps.shape)} "
                f"and constant {tuple(constant.shape)} do not make one map: they need 3, 3, 2 axes"
            )
        terms, rows, _ = feature_maps.shape
        if token_maps.shape[0] != terms or constant.shape != (token_maps.shape[2], rows):
            raise ShapeError(
                f"feature maps {tuple(feature_maps.shape)}, token maps {tuple(token_maps.shape)} "
                f"and constant {tuple(constant.shape)} do not make one map"
            )
        self.register_buffer("feature_maps", feature_maps)
        self.register_buffer("token_maps", token_maps)
        self.register_buffer("constant", constant)

    def forward(self, z: Float[Tensor, "*b n p"]) -> Float[Tensor, "*b m q"]:
        """Expand."""
        expected = (self.token_maps.shape[1], self.feature_maps.shape[2])
        if z.shape[-2:] != expected:
            raise ShapeError(
                f"this map takes (*batch, {expected[0]} tokens, {expected[1]} features), "
                f"got {tuple(z.shape)}"
            )
        terms = self.token_maps.mT @ (z.unsqueeze(-3) @ self.feature_maps.mT)
        return terms.sum(-3) + self.constant


class Embed(nn.Module):
    r"""The affine map Lin as an embedding: where a token's features go, and its position.

    .. math:: \mathrm{Embed}(Z)_t = A z_t + B p_t + c

    Parameters
    ----------
    features
        A, shape (out_features, in_features).
    places
        Positions p_t, shape (tokens, places).
    spread
        B, shape (out_features, places).
    constant
        c, shape (out_features,).
    names
        Names of the features that it gives.
    """

    features: Tensor
    places: Tensor
    spread: Tensor
    constant: Tensor

    def __init__(
        self,
        features: Float[Tensor, "q p"],
        places: Float[Tensor, "n k"],
        spread: Float[Tensor, "q k"],
        constant: Float[Tensor, "q"],
        *,
        names: Features | None = None,
    ) -> None:
        super().__init__()
        wide = {len(features), len(spread), len(constant)}
        if len(wide) != 1 or places.shape[1] != spread.shape[1]:
            raise ShapeError(
                f"features {tuple(features.shape)}, places {tuple(places.shape)}, spread "
                f"{tuple(spread.shape)} and constant {tuple(constant.shape)} do not make one map"
            )
        self.register_buffer("features", features)
        self.register_buffer("places", places)
        self.register_buffer("spread", spread)
        self.register_buffer("constant", constant)
        self.names = names

    @property
    def positions(self) -> Float[Tensor, "n q"]:
        """What is added to each token."""
        return self.places @ self.spread.mT + self.constant

    def forward(self, z: Float[Tensor, "*b n p"]) -> Float[Tensor, "*b n q"]:
        """Embed."""
        expected = (len(self.places), self.features.shape[1])
        if z.shape[-2:] != expected:
            raise ShapeError(
                f"this map takes (*batch, {expected[0]} tokens, {expected[1]} features), "
                f"got {tuple(z.shape)}"
            )
        return z @ self.features.mT + self.positions
