"""Pre-norm block with a second LayerNorm inside attention and feed-forward net, of LTG-BERT.

Shleifer et al. 2021 (NormFormer), section 2; Samuel et al. 2023 (LTG-BERT), section 3. GPT-BERT
gates the output of attention (Charpentier & Samuel 2024). All LayerNorms but one are without
parameters.
"""

from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.layers.blocks import multiply_activated
from bertjax.layers.dense import Dense, Precision, activation
from bertjax.layers.disentangled_attention import (
    C2P,
    P2C,
    DisentangledAttention,
    RelativePositions,
)
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import LayerNorm


def plain_norm(epsilon: float, name: str) -> LayerNorm:
    """A LayerNorm without parameters."""
    return LayerNorm(epsilon, use_bias=False, use_scale=False, name=name)


class SubNormAttention(DisentangledAttention):
    """Disentangled attention with a LayerNorm of its output, and optionally a gate.

    With a gate, the context vectors of all heads are multiplied by the activations of another
    projection of the input and normalised before the output projection, as in the released code of
    GPT-BERT. Without one, the projected output is normalised with scale and bias, as in that of
    LTG-BERT.

    Attributes:
      gated: Whether there is a gate.
      gate_act: Name of the activation of the gate.
      layer_norm_eps: Epsilon of the LayerNorm.
      interleaved_positions: Whether heads divide the 2 H K projected values of a relative position
        into H pairs of a query and a key instead of H queries and H keys, as in the code that
        trained the first models of LTG-BERT; tokens are always divided the second way.
    """

    gated: bool = True
    gate_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    interleaved_positions: bool = False

    def _project_positions(
        self, embeddings: Float[Array, "R D"], projections: Mapping[str, Dense]
    ) -> dict[str, Float[Array, "R H K"]]:
        projected = super()._project_positions(embeddings, projections)
        if not self.interleaved_positions:
            return projected
        both_R2HK = jnp.stack((projected[P2C], projected[C2P]), axis=1)
        rows, _, heads, width = both_R2HK.shape
        pairs_RH2K = both_R2HK.reshape(rows, heads, 2, width)
        return {P2C: pairs_RH2K[:, :, 0], C2P: pairs_RH2K[:, :, 1]}

    def _output(self, context: Float[Array, "B Q H K"], x: Float[Array, "B Q D"]) -> Array:
        if not self.gated:
            return LayerNorm(self.layer_norm_eps, name="norm")(super()._output(context, x))
        gate = self._heads(context.shape[2:], "gate")(x)
        gated = multiply_activated(activation(self.gate_act), gate, context)
        normal = plain_norm(self.layer_norm_eps, "norm")(gated.reshape(x.shape))
        return super()._output(normal.reshape(context.shape), x)


class SubNormFeedForward(nn.Module):
    """Gated feed-forward net with a LayerNorm before the second map and without biases.

    Attributes:
      intermediate_size: F, the width between the two maps.
      hidden_act: Name of the nonlinearity.
      layer_norm_eps: Epsilon of the LayerNorm.
      initializer_range: Initial standard deviation of the kernels.
      precision: Types of operands and results.
    """

    intermediate_size: int
    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        def dense(features, axes, name):
            return Dense(
                (features,),
                axes,
                use_bias=False,
                initializer_range=self.initializer_range,
                precision=self.precision,
                name=name,
            )

        hidden = dense(self.intermediate_size, ("embed", "mlp"), "intermediate")(x)
        gate = dense(self.intermediate_size, ("embed", "mlp"), "gate")(x)
        product = multiply_activated(activation(self.hidden_act), hidden, gate)
        normal = plain_norm(self.layer_norm_eps, "norm")(product)
        return dense(x.shape[-1], ("mlp", "embed"), "output")(normal)


class SubNormBlock(nn.Module):
    """Attention and feed-forward net, each with a LayerNorm of its input and a residual sum.

    The two halves are methods, so that `layers/depth_weighted_stack.py` can apply them one by one.

    Attributes:
      attention: Self-attention.
      feed_forward: Feed-forward net.
      dropout_rate: Dropout of both outputs before the residual sums.
      layer_norm_eps: Epsilon of both LayerNorms.
    """

    attention: nn.Module
    feed_forward: nn.Module
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-5

    def __call__(
        self, x: Float[Array, "B L D"], positions: RelativePositions, *, train: bool
    ) -> Float[Array, "B L D"]:
        """Applies both halves."""
        x = self.add_attention(x, positions, train=train)
        return self.add_feed_forward(x, positions, train=train)

    @nn.compact
    def add_attention(
        self, x: Float[Array, "B L D"], positions: RelativePositions, *, train: bool
    ) -> Float[Array, "B L D"]:
        """Adds the output of attention."""
        normal = plain_norm(self.layer_norm_eps, "attention_norm")(x)
        dropout = Dropout(self.dropout_rate, name="attention_dropout")
        return x + dropout(self.attention(normal, positions, train=train), train=train)

    @nn.compact
    def add_feed_forward(
        self, x: Float[Array, "B L D"], positions: RelativePositions, *, train: bool
    ) -> Float[Array, "B L D"]:
        """Adds the output of the feed-forward net, which reads no positions."""
        normal = plain_norm(self.layer_norm_eps, "feed_forward_norm")(x)
        dropout = Dropout(self.dropout_rate, name="feed_forward_dropout")
        return x + dropout(self.feed_forward(normal), train=train)
