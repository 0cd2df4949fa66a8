"""Transformer blocks: post-norm, pre-norm, decoder, and XLNet's two-stream block.

Each has attention and a feed-forward net with residual connections. The decoder block also attends
to a source, and runs on whole sequences or token by token with a `LayerCache`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from bertjax.layers.attention import CrossAttention, KeysValues
from bertjax.layers.dense import Activation, Dense, Precision, activation
from bertjax.layers.disentangled_attention import RelativePositions
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import LayerNorm
from bertjax.layers.masks import Mask
from bertjax.layers.relative_attention import Streams, Views


class FeedForward(nn.Module):
    """Position-wise feed-forward net: two linear maps with an activation between.

    Vaswani et al. 2017, section 3.3.

    Attributes:
      intermediate_size: F, the width between the two maps.
      hidden_act: Name of the nonlinearity.
      initializer_range: Initial standard deviation of both kernels.
      precision: Types of operands and results.
      output_range: Initial standard deviation of the second kernel; 0 for `initializer_range`.
      use_bias: Whether the linear maps have biases.
      gated: Whether a third map of the input, without activation, multiplies the activations: a
        gated linear unit, GeGLU with GELU (Shazeer 2020, section 2).
    """

    intermediate_size: int
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    precision: Precision = Precision()
    output_range: float = 0.0
    use_bias: bool = True
    gated: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        dense = functools.partial(Dense, use_bias=self.use_bias, precision=self.precision)
        to_hidden = functools.partial(
            dense,
            (self.intermediate_size,),
            ("embed", "mlp"),
            initializer_range=self.initializer_range,
        )
        hidden = to_hidden(name="intermediate")(x)
        output = dense(
            (x.shape[-1],),
            ("mlp", "embed"),
            initializer_range=self.output_range or self.initializer_range,
            name="output",
        )
        if not self.gated:
            return output(hidden, input_activation=activation(self.hidden_act))
        gate = to_hidden(name="gate")(x)
        return output(multiply_activated(activation(self.hidden_act), hidden, gate))


# The activations are rematerialised: the residuals are the two inputs alone.
@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=0)
def multiply_activated(
    activation: Activation, hidden: Float[Array, "*shape"], gate: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """The product of the activations of one array with another array."""
    return activation(hidden) * gate


class PostNormBlock(nn.Module):
    """LayerNorm after each residual sum, as published for the Transformer and BERT.

    Attributes:
      attention: Self-attention.
      feed_forward: Feed-forward net.
      dropout_rate: Dropout of both outputs before the residual sums.
      layer_norm_eps: Epsilon of both LayerNorms.
      norm_bias: Whether the LayerNorms have biases.
    """

    attention: nn.Module
    feed_forward: nn.Module
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-12
    norm_bias: bool = True

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        mask: Mask | RelativePositions,
        *past: PyTree,
        train: bool,
    ) -> Float[Array, "B L D"]:
        """Applies the block; `past`, if given, is passed to the attention."""
        dropout = Dropout(self.dropout_rate)
        attention_output = dropout(self.attention(x, mask, *past, train=train), train=train)
        x = LayerNorm(self.layer_norm_eps, self.norm_bias, name="attention_norm")(
            x + attention_output
        )
        update = dropout(self.feed_forward(x), train=train)
        return LayerNorm(self.layer_norm_eps, self.norm_bias, name="feed_forward_norm")(x + update)


class Source(NamedTuple):
    """Inputs that all blocks of a decoder share.

    Attributes:
      visible: Mask of self-attention.
      memory: Output of the encoder.
      mask: Padding mask of the source.
    """

    visible: Mask
    memory: Float[Array, "B M D"]
    mask: Mask


class LayerCache(NamedTuple):
    """Cached keys and values of a block: of earlier target tokens, and of the source."""

    past: KeysValues
    source: KeysValues


class DecoderBlock(nn.Module):
    """LayerNorm after each of three residual sums (Vaswani et al. 2017, section 3.1).

    Attributes:
      attention: Causal self-attention.
      cross_attention: Attention to the source.
      feed_forward: Feed-forward net.
      dropout_rate: Dropout of the three outputs before the residual sums.
      layer_norm_eps: Epsilon of the three LayerNorms.
    """

    attention: CrossAttention
    cross_attention: CrossAttention
    feed_forward: nn.Module
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-6

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], source: Source, *, train: bool
    ) -> Float[Array, "B T D"]:
        """Applies the block to all target tokens at once."""
        cache = LayerCache(self.attention.read(x), self.read(source.memory))
        return self._decode(x, cache, source.visible, source.mask, train=train)

    def read(self, memory: Float[Array, "B M D"]) -> KeysValues:
        """Computes the keys and values of the source."""
        return self.cross_attention.read(memory)

    @nn.compact
    def step(
        self,
        x: Float[Array, "B 1 D"],
        cache: LayerCache,
        at: Int[Array, ""],
        visible: Mask,
        mask: Mask,
    ) -> tuple[Float[Array, "B 1 D"], KeysValues]:
        """Applies the block to one token and writes its keys and values to the cache at `at`."""
        new = self.attention.read(x)
        past = KeysValues(
            *(
                lax.dynamic_update_slice_in_dim(old, one.astype(old.dtype), at, axis=1)
                for old, one in zip(cache.past, new, strict=True)
            )
        )
        return self._decode(x, LayerCache(past, cache.source), visible, mask, train=False), past

    def _decode(self, x, cache, visible, mask, *, train):
        dropout = Dropout(self.dropout_rate)

        def add_and_norm(x, change, name):
            norm = LayerNorm(self.layer_norm_eps, name=name)
            return norm(x + dropout(change, train=train))

        x = add_and_norm(x, self.attention(x, cache.past, visible, train=train), "attention_norm")
        attention_output = self.cross_attention(x, cache.source, mask, train=train)
        x = add_and_norm(x, attention_output, "cross_attention_norm")
        return add_and_norm(x, self.feed_forward(x), "feed_forward_norm")


class PreNormBlock(nn.Module):
    """Norms at the input of attention and feed-forward net (Radford et al. 2019, section 2.3).

    The output of the last block is not normalised: a model adds a final norm.

    Attributes:
      attention: Self-attention.
      feed_forward: Feed-forward net.
      dropout_rate: Dropout of both outputs before the residual sums.
      layer_norm_eps: Epsilon of both norms.
      norm_bias: Whether the norms have biases.
      attention_dropout_rate: Dropout of the attention's output; None for `dropout_rate`.
      norm_attention: Whether the input of attention is normalised; the first block of ModernBERT
        reads embeddings that already are.
      norm: `LayerNorm` or `RMSNorm`.
    """

    attention: nn.Module
    feed_forward: nn.Module
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-5
    norm_bias: bool = True
    attention_dropout_rate: float | None = None
    norm_attention: bool = True
    norm: Callable[..., nn.Module] = LayerNorm

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        mask: Mask,
        *past: PyTree,
        train: bool,
    ) -> Float[Array, "B L D"]:
        """Applies the block; `past`, if given, is passed to the attention."""
        dropout, attention_dropout = Dropout(self.dropout_rate), self.attention_dropout_rate
        normal = x
        if self.norm_attention:
            normal = self.norm(self.layer_norm_eps, self.norm_bias, name="attention_norm")(x)
        attention_output = self.attention(normal, mask, *past, train=train)
        own = dropout if attention_dropout is None else Dropout(attention_dropout)
        x = x + own(attention_output, train=train)
        normal = self.norm(self.layer_norm_eps, self.norm_bias, name="feed_forward_norm")(x)
        return x + dropout(self.feed_forward(normal), train=train)


class DroppingFeedForward(nn.Module):
    """A feed-forward net with dropout between its two maps, as in XLNet's published code.

    Attributes:
      intermediate_size: F, the width between the two maps.
      hidden_act: Name of the nonlinearity.
      dropout_rate: Dropout after the nonlinearity.
      initializer_range: Initial standard deviation of both kernels.
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
    """XLNet's block: all streams through the same weights, LayerNorm after each residual sum.

    Attributes:
      attention: A `RelativeAttention`.
      feed_forward: Feed-forward net.
      dropout_rate: Dropout of both outputs before the residual sums.
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

        def apply_to_stream(x, attention_output):
            x = attention_norm(x + dropout(attention_output, train=train))
            update = self.feed_forward(x, train=train)
            return feed_forward_norm(x + dropout(update, train=train))

        attention_output = self.attention(streams, views, memory, train=train)
        return tuple(map(apply_to_stream, streams, attention_output))
