"""Heads on an encoder: pooling, vocabulary scores, classifiers, weighted sums of layers.

`pooled_output` and `token_output` are the inputs of task heads. Their parameters belong to the
calling module: `pooler`, and `mix`, the layer weights of models such as ELMo (Peters et al. 2018,
equation 1).
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from bertjax.constraints import integer
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.dense import Dense, Initializer, Precision, activation, truncated_normal
from bertjax.layers.embeddings import LayerNorm
from bertjax.pretrainer import Encoded, Encoder

PoolerCount = Annotated[int, integer(0, 1)]


class Pooler(nn.Module):
    """tanh of a linear map of the first token (Devlin et al. 2019; `pooled_output`).

    Attributes:
      initializer_range: Standard deviation of the kernel at the start.
      precision: Types of operands and results.
      hidden_act: Name of the activation.
    """

    initializer_range: float = 0.02
    precision: Precision = Precision()
    hidden_act: str = "tanh"

    @nn.compact
    def __call__(self, sequence: Float[Array, "B L D"]) -> Float[Array, "B D"]:
        dense = Dense(
            (sequence.shape[-1],),
            ("embed", None),
            initializer_range=self.initializer_range,
            precision=self.precision,
            name="dense",
        )
        return activation(self.hidden_act)(dense(sequence[:, 0]))


def last_token(sequence: Float[Array, "B L D"], there: Bool[Array, "B L"]) -> Float[Array, "B D"]:
    """The vector of the last token that is there, which has seen all others of its text."""
    last = there.shape[1] - 1 - jnp.argmax(there[:, ::-1], axis=1)
    return jnp.take_along_axis(sequence, last[:, None, None], axis=1)[:, 0]


class PredictionTransform(nn.Module):
    """The map between an encoder's output and the word embeddings: dense, activation, LayerNorm.

    Attributes:
      features: Width of the word embeddings.
      hidden_act: Name of the activation.
      layer_norm_eps: Epsilon of the LayerNorm.
      initializer_range: Standard deviation of the kernel at the start.
      precision: Types of operands and results.
    """

    features: int
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead E"]:
        dense = Dense(
            (self.features,),
            ("embed", None),
            initializer_range=self.initializer_range,
            precision=self.precision,
            name="dense",
        )
        transformed = activation(self.hidden_act)(dense(hidden))
        return LayerNorm(self.layer_norm_eps, name="norm")(transformed)


class Classifier(nn.Module):
    """A linear map to a few classes, in float32.

    Attributes:
      num_labels: Classes.
      initializer_range: Standard deviation of the kernel at the start.
      initializer: What makes an initialiser of a deviation.
    """

    num_labels: int
    initializer_range: float = 0.02
    initializer: Callable[[float], Initializer] = truncated_normal

    @nn.compact
    def __call__(self, pooled: Float[Array, "*lead D"]) -> Float[Array, "*lead C"]:
        dense = Dense(
            (self.num_labels,),
            ("embed", None),
            initializer_range=self.initializer_range,
            initializer=self.initializer,
            name="dense",
        )
        return dense(pooled.astype(jnp.float32))


class TaskClassifier(Classifier):
    """What fine-tuning puts on a trained encoder.

    Its deviation is that of the config. A normal cut at two deviations has 0.88 of it, and how
    large a head begins decides how fast a short fine-tuning gets on.
    """

    initializer: Callable[[float], Initializer] = nn.initializers.normal


class ScalarMix(nn.Module):
    """gamma times the sum of layers with softmax-normalised weights, all alike at first.

    Attributes:
      layer_norm: Whether the vectors of each layer are normalised first. They are one by one
        (published: with the mean and variance of the whole batch), so that no token of another
        example counts.
    """

    layer_norm: bool = False

    @nn.compact
    def __call__(self, layers: Sequence[Float[Array, "B L D"]]) -> Float[Array, "B L D"]:
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, (None,))
        weights = jax.nn.softmax(self.param("weights", zeros, (len(layers),)))
        gamma = self.param("gamma", nn.initializers.ones, ())
        stacked = jnp.stack([layer.astype(jnp.float32) for layer in layers])
        if self.layer_norm:
            centered = stacked - stacked.mean(axis=-1, keepdims=True)
            stacked = centered * lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + 1e-12)
        return gamma * jnp.einsum("n,nbld->bld", weights, stacked)


def token_output(encoded: Encoded, *, mix_layer_norm: bool) -> Float[Array, "B L D"]:
    """The last layer, or the weighted sum of all of an encoder that was made for that.

    Args:
      encoded: An encoder's output.
      mix_layer_norm: Whether layers that are weighed are normalised (`layers/heads.py`).
    """
    if encoded.layers is None:
        return encoded.sequence
    return ScalarMix(mix_layer_norm, name="mix")(encoded.layers)


def pooled_output(
    encoder: Encoder, encoded: Encoded, batch: Batch, *, pooler_act: str, mix_layer_norm: bool
) -> Float[Array, "B D"]:
    """What the encoder was taught to pool, or a new pooler's output.

    The new pooler reads the first token, [CLS] where that comes last, or the mean over all tokens
    where layers are weighed.

    Args:
      encoder: Whose output it is.
      encoded: Its output.
      batch: What it read.
      pooler_act: Activation of a new pooler: tanh as in RoBERTa's classification head.
      mix_layer_norm: As in `token_output`.
    """
    if encoded.pooled is not None:
        return encoded.pooled
    pooler = Pooler(encoder.initializer_range, hidden_act=pooler_act, name="pooler")
    sequence = token_output(encoded, mix_layer_norm=mix_layer_norm)
    if encoded.layers is not None:
        return pooler(masks.mean(sequence, batch["attention_mask"])[:, None])
    return pooler(sequence if encoded.cls_state is None else encoded.cls_state[:, None])
