"""XLNet's block: relative attention and a feed-forward net for each of one or two streams."""

import flax.linen as nn
from jaxtyping import Array, Float

from bertjax.layers.activations import activation
from bertjax.layers.dense import Dense
from bertjax.layers.dropout import Dropout
from bertjax.layers.norm import LayerNorm
from bertjax.layers.precision import Precision
from bertjax.layers.relative_attention import Streams, Views


class DroppingFeedForward(nn.Module):
    """A feed-forward net with dropout between its two maps, as in XLNet's published code.

    Attributes:
      intermediate_size: F, the width between the two maps.
      hidden_act: Name of the nonlinearity.
      dropout_rate: Dropout after the nonlinearity.
      initializer_range: Standard deviation of both kernels at the start.
      precision: Types of operands and results.
    """

    intermediate_size: int
    hidden_act: str = "gelu"
    dropout_rate: float = 0.1
    initializer_range: float = 0.02
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x: Float[Array, "B Q D"], *, train: bool) -> Float[Array, "B Q D"]:
        def dense(features, axes, name):
            return Dense(
                (features,),
                axes,
                initializer_range=self.initializer_range,
                precision=self.precision,
                name=name,
            )

        hidden = dense(self.intermediate_size, ("embed", "mlp"), "intermediate")(x)
        hidden = Dropout(self.dropout_rate)(activation(self.hidden_act)(hidden), train=train)
        return dense(x.shape[-1], ("mlp", "embed"), "output")(hidden)


class StreamBlock(nn.Module):
    """All streams through the same weights, with LayerNorm after each residual sum.

    Attributes:
      attention: A `RelativeAttention`.
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
        streams: Streams,
        views: Views,
        memory: Float[Array, "B T D"] | None = None,
        *,
        train: bool,
    ) -> Streams:
        dropout = Dropout(self.dropout_rate)
        attention_norm = LayerNorm(self.layer_norm_eps, name="attention_norm")
        feed_forward_norm = LayerNorm(self.layer_norm_eps, name="feed_forward_norm")

        def after_attention(x, attended):
            x = attention_norm(x + dropout(attended, train=train))
            changed = self.feed_forward(x, train=train)
            return feed_forward_norm(x + dropout(changed, train=train))

        attended = self.attention(streams, views, memory, train=train)
        return tuple(map(after_attention, streams, attended))
