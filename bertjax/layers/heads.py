"""Heads on an encoder: pooling, vocabulary scores, classifiers, weighted sums of layers.

`pooled_output` and `token_output` are the inputs of task heads. Their parameters belong to the
calling module: `pooler`, `transform`, and `mix`, the layer weights of models such as ELMo (Peters
et al. 2018, equation 1).
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
from bertjax.layers import masks, width_scaling
from bertjax.layers.dense import (
    Dense,
    Initializer,
    Precision,
    activation,
    get_precision,
    truncated_normal,
)
from bertjax.layers.embeddings import LayerNorm
from bertjax.pretrainer import Encoded, Encoder

PoolerCount = Annotated[int, integer(0, 1)]


class Pooler(nn.Module):
    """tanh of a linear map of the first token (Devlin et al. 2019; `pooled_output`).

    Attributes:
      initializer_range: Initial standard deviation of the kernel.
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


def last_token(
    sequence: Float[Array, "B L D"], attention_mask: Bool[Array, "B L"]
) -> Float[Array, "B D"]:
    """The vector of the last token before the padding; with causal attention it sees all tokens."""
    last = attention_mask.shape[1] - 1 - jnp.argmax(attention_mask[:, ::-1], axis=1)
    return jnp.take_along_axis(sequence, last[:, None, None], axis=1)[:, 0]


class PredictionTransform(nn.Module):
    """Transform of a prediction head: dense, activation, LayerNorm.

    Attributes:
      features: Width of the word embeddings.
      hidden_act: Name of the activation.
      layer_norm_eps: Epsilon of the LayerNorm.
      initializer_range: Initial standard deviation of the kernel.
      precision: Types of operands and results.
      use_bias: Whether the linear map has a bias.
      norm_bias: Whether the LayerNorm has a bias.
      norm_scale: Whether the LayerNorm has a scale.
    """

    features: int
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    precision: Precision = Precision()
    use_bias: bool = True
    norm_bias: bool = True
    norm_scale: bool = True

    @nn.compact
    def __call__(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead E"]:
        dense = Dense(
            (self.features,),
            ("embed", None),
            use_bias=self.use_bias,
            initializer_range=self.initializer_range,
            precision=self.precision,
            name="dense",
        )
        transformed = activation(self.hidden_act)(dense(hidden))
        norm = LayerNorm(self.layer_norm_eps, self.norm_bias, self.norm_scale, name="norm")
        return norm(transformed)


def prediction_transform(
    encoder: Encoder, name: str, *, features: int = 0, hidden_act: str = ""
) -> PredictionTransform:
    """The transform of a head on an encoder, with its activation, epsilon, precision and biases.

    Args:
      encoder: The encoder.
      name: Name of the parameters.
      features: Output width; 0 for that of the word embeddings.
      hidden_act: Name of the activation; "" for the encoder's.
    """
    norm_has_parameters = getattr(encoder, "head_norm_parameters", True)
    return PredictionTransform(
        features or encoder.embedding_size,
        hidden_act or encoder.hidden_act,
        encoder.layer_norm_eps,
        width_scaling.hidden_stddev(encoder),
        get_precision(encoder.precision),
        use_bias=getattr(encoder, "classifier_bias", True),
        norm_bias=norm_has_parameters and getattr(encoder, "norm_bias", True),
        norm_scale=norm_has_parameters,
        name=name,
    )


class Classifier(nn.Module):
    """A linear map to a few classes, in float32.

    Attributes:
      num_labels: C.
      initializer_range: Initial standard deviation of the kernel.
      initializer: Maps a standard deviation to an initialiser.
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
    """Classifier of a fine-tuning task, initialised from a normal distribution.

    A distribution truncated at two standard deviations has 0.88 of the stddev, and the initial
    scale of a head determines how fast a short fine-tuning converges.
    """

    initializer: Callable[[float], Initializer] = nn.initializers.normal


class ScalarMix(nn.Module):
    """Scalar mix: gamma times the sum of layers with softmax-normalised weights, initially equal.

    Attributes:
      layer_norm: Whether the vectors of each layer are normalised first: one by one, so that they
        do not depend on other examples (published: with mean and variance of the whole batch).
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


def token_output(
    encoder: Encoder, encoded: Encoded, *, mix_layer_norm: bool, transform: bool = False
) -> Float[Array, "B L D"]:
    """The last layer, or the scalar mix of all layers if the encoder returns `layers`.

    Args:
      encoder: The encoder.
      encoded: Its output.
      mix_layer_norm: As `ScalarMix.layer_norm`.
      transform: Whether the transform of a prediction head follows.
    """
    sequence = encoded.sequence
    if encoded.layers is not None:
        sequence = ScalarMix(mix_layer_norm, name="mix")(encoded.layers)
    if transform:
        prediction_head = prediction_transform(encoder, "transform", features=encoder.hidden_size)
        sequence = prediction_head(sequence)
    return sequence


def pooled_output(
    encoder: Encoder, encoded: Encoded, batch: Batch, *, pooler_act: str, mix_layer_norm: bool
) -> Float[Array, "B D"]:
    """The pretrained pooler's output, or that of a new pooler.

    A new pooler is applied to the first token, to `cls_state` if there is one, or to the mean over
    all tokens of a scalar mix. For an encoder with `classifier_pooling` it is the transform of a
    prediction head, as in ModernBERT.

    Args:
      encoder: The encoder.
      encoded: Its output for the batch.
      batch: The batch.
      pooler_act: Activation of a new pooler: tanh as in RoBERTa's classification head.
      mix_layer_norm: As in `token_output`.
    """
    if encoded.pooled is not None:
        return encoded.pooled
    pooling = getattr(encoder, "classifier_pooling", "")
    if pooling:
        sequence = encoded.sequence
        mean = pooling == "mean"
        summary = masks.mean(sequence, batch["attention_mask"]) if mean else sequence[:, 0]
        return prediction_transform(encoder, "pooler", features=encoder.hidden_size)(summary)
    stddev = width_scaling.hidden_stddev(encoder)
    pooler = Pooler(stddev, hidden_act=pooler_act, name="pooler")
    sequence = token_output(encoder, encoded, mix_layer_norm=mix_layer_norm)
    if encoded.layers is not None:
        return pooler(masks.mean(sequence, batch["attention_mask"])[:, None])
    return pooler(sequence if encoded.cls_state is None else encoded.cls_state[:, None])
