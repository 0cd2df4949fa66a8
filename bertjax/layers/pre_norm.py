"""Transformer blocks whose residual path is never normalised (Xiong et al. 2020)."""

import flax.linen as nn
from jaxtyping import Array, Bool, Float

from bertjax.layers.dropout import Dropout
from bertjax.layers.norm import LayerNorm


class PreNormBlock(nn.Module):
    """LayerNorm before attention and before the feed-forward net; a stack ends with another one.

    Attributes:
      attention: The attention of this block.
      feed_forward: The feed-forward net of this block.
      dropout_rate: Dropout of both outputs before they are added.
      layer_norm_eps: Epsilon of both LayerNorms.
    """

    attention: nn.Module
    feed_forward: nn.Module
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-6

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], mask: Bool[Array, "B 1 #L L"], *, train: bool
    ) -> Float[Array, "B L D"]:
        dropout = Dropout(self.dropout_rate)
        given = LayerNorm(self.layer_norm_eps, name="attention_norm")(x)
        x = x + dropout(self.attention(given, mask, train=train), train=train)
        given = LayerNorm(self.layer_norm_eps, name="feed_forward_norm")(x)
        return x + dropout(self.feed_forward(given), train=train)
