"""What stands on top of an encoder: pooling, vocabulary scores, classes."""

from collections.abc import Callable
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.constraints import integer
from bertjax.layers.activations import activation
from bertjax.layers.dense import Dense, Initializer, truncated_normal
from bertjax.layers.norm import LayerNorm
from bertjax.layers.precision import Precision

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
