"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.layers.dense import Dense
from bertjax.layers.dropout import Dropout
from bertjax.layers.precision import Precision


class SelfAttention(nn.Module):
    """Attention of a sequence to itself.

    Attributes:
      num_heads: H; divides the hidden width.
      dropout_rate: Dropout of the attention weights.
      initializer_range: Standard deviation of all kernels at the start.
      precision: Types of operands and results; the softmax is float32.
    """

    num_heads: int
    dropout_rate: float = 0.1
    initializer_range: float = 0.02
    precision: Precision = Precision()

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], mask: Bool[Array, "B 1 #L L"], *, train: bool
    ) -> Float[Array, "B L D"]:
        width = x.shape[-1]

        def project(name):
            features = (self.num_heads, width // self.num_heads)
            axes = ("embed", "heads", "kv")
            return self._dense(features, axes, name=name)(x)

        query, key, value = project("query"), project("key"), project("value")
        context = attend(query, key, value, mask, Dropout(self.dropout_rate), train=train)
        return self._dense((width,), ("heads", "kv", "embed"), contracted=2, name="output")(context)

    @nn.compact
    def scores(
        self, x: Float[Array, "B L D"], mask: Bool[Array, "B 1 #L L"]
    ) -> Float[Array, "B H L L"]:
        """What `__call__` takes the softmax of; 0 where the mask hides."""
        features = (self.num_heads, x.shape[-1] // self.num_heads)
        query, key = (
            self._dense(features, ("embed", "heads", "kv"), name=name)(x)
            for name in ("query", "key")
        )
        return jnp.where(mask, scaled_scores(query, key), 0.0)

    def _dense(self, features, axes, *, name, contracted=1):
        return Dense(
            features,
            axes,
            contracted=contracted,
            initializer_range=self.initializer_range,
            precision=self.precision,
            name=name,
        )


def attend(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B M H K"],
    value: Float[Array, "B M H K"],
    mask: Bool[Array, "#B 1 #L M"],
    dropout: Dropout,
    *,
    train: bool,
) -> Float[Array, "B L H K"]:
    """softmax(Q K^T / sqrt(K)) V over the tokens that the mask shows (equation 1).

    Hidden tokens get a weight of exactly zero and pass no gradient.
    """
    scores_BHLM = jnp.where(mask, scaled_scores(query, key), jnp.finfo(jnp.float32).min)
    weights_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(value.dtype)
    weights_BHLM = dropout(weights_BHLM, train=train)
    return jnp.einsum("bhlm,bmhk->blhk", weights_BHLM, value)


def scaled_scores(
    query: Float[Array, "B L H K"], key: Float[Array, "B M H K"]
) -> Float[Array, "B H L M"]:
    """Q K^T / sqrt(K), in float32."""
    scores_BHLM = jnp.einsum("blhk,bmhk->bhlm", query, key).astype(jnp.float32)
    return scores_BHLM / math.sqrt(query.shape[-1])
