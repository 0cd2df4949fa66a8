"""The pre-norm block: LayerNorm before each part, and a residual path that nothing normalises."""

import flax.linen as nn
from jaxtyping import Array, Float, PyTree

from bertjax.layers.dropout import Dropout
from bertjax.layers.masks import Mask
from bertjax.layers.norm import LayerNorm


class PreNormBlock(nn.Module):
    """LayerNorm at the input of attention and feed-forward net (Radford et al. 2019, section 2.3).

    The output of the last block is not normalised: whoever stacks these adds a LayerNorm.

    Attributes:
      attention: The attention of this block.
      feed_forward: The feed-forward net of this block.
      dropout_rate: Dropout of both outputs before they are added.
      layer_norm_eps: Epsilon of both LayerNorms.
    """

    attention: nn.Module
    feed_forward: nn.Module
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-5

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        mask: Mask,
        *past: PyTree,
        train: bool,
    ) -> Float[Array, "B L D"]:
        """`past`, where there is one, is what the attention knows of earlier tokens."""
        dropout = Dropout(self.dropout_rate)
        normal = LayerNorm(self.layer_norm_eps, name="attention_norm")(x)
        x = x + dropout(self.attention(normal, mask, *past, train=train), train=train)
        normal = LayerNorm(self.layer_norm_eps, name="feed_forward_norm")(x)
        return x + dropout(self.feed_forward(normal), train=train)
