"""Transformer blocks: attention and a feed-forward net, each with a residual connection."""

import flax.linen as nn
from jaxtyping import Array, Float, PyTree

from bertjax.layers.activations import activation
from bertjax.layers.dense import Dense
from bertjax.layers.dropout import Dropout
from bertjax.layers.masks import Mask
from bertjax.layers.norm import LayerNorm
from bertjax.layers.precision import Precision


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between (Vaswani et al. 2017, section 3.3).

    Attributes:
      intermediate_size: F, the width between the two maps.
      hidden_act: Name of the nonlinearity.
      initializer_range: Standard deviation of both kernels at the start.
      precision: Types of operands and results.
      output_range: Standard deviation of the second kernel instead; 0 for the same.
    """

    intermediate_size: int
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    precision: Precision = Precision()
    output_range: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        def dense(features, axes, name):
            return Dense(
                (features,),
                axes,
                initializer_range=(name == "output" and self.output_range)
                or self.initializer_range,
                precision=self.precision,
                name=name,
            )

        hidden = dense(self.intermediate_size, ("embed", "mlp"), "intermediate")(x)
        output = dense(x.shape[-1], ("mlp", "embed"), "output")
        return output(hidden, after=activation(self.hidden_act))


class PostNormBlock(nn.Module):
    """LayerNorm after each residual sum, as published for the Transformer and BERT.

    Attributes:
      attention: The attention of this block.
      feed_forward: The feed-forward net of this block.
      dropout_rate: Dropout of both outputs before they are added.
      layer_norm_eps: Epsilon of both LayerNorms.
    """

    attention: nn.Module
    feed_forward: nn.Module
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-12

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
        attended = dropout(self.attention(x, mask, *past, train=train), train=train)
        x = LayerNorm(self.layer_norm_eps, name="attention_norm")(x + attended)
        changed = dropout(self.feed_forward(x), train=train)
        return LayerNorm(self.layer_norm_eps, name="feed_forward_norm")(x + changed)
