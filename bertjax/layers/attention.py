"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.layers import attention_kernels
from bertjax.layers.attended import attended
from bertjax.layers.dense import Dense
from bertjax.layers.dropout import Dropout
from bertjax.layers.masks import Mask
from bertjax.layers.precision import Precision

Past = tuple[Float[Array, "B T H K"], Float[Array, "B T H K"]]
"""Keys and values of tokens that were read before."""


class SelfAttention(nn.Module):
    """Attention of a sequence to itself.

    Attributes:
      num_heads: H; divides the hidden width.
      dropout_rate: Dropout of the attention weights.
      initializer_range: Standard deviation of all kernels at the start.
      precision: Types of operands and results; the softmax is float32.
      output_range: Standard deviation of the output's kernel instead; 0 for the same.
    """

    num_heads: int
    dropout_rate: float = 0.1
    initializer_range: float = 0.02
    precision: Precision = Precision()
    output_range: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        mask: Mask,
        past: Past | None = None,
        *,
        train: bool,
    ) -> Float[Array, "B L D"]:
        """Attends to the sequence, and to what came before it.

        Where the collection "cache" may be written, the keys and values of x are left there.

        Args:
          x: The sequence.
          mask: Who sees whom; columns of the past come first.
          past: Keys and values of earlier tokens.
          train: Whether dropout is applied; nothing is trained on a past.
        """
        width = x.shape[-1]

        def project(name):
            features = (self.num_heads, width // self.num_heads)
            axes = ("embed", "heads", "kv")
            return self._dense(features, axes, name=name)(x)

        query, key, value = project("query"), project("key"), project("value")
        if self.is_mutable_collection("cache") and not self.is_initializing():
            self.put_variable("cache", "key", key)
            self.put_variable("cache", "value", value)
        if past is None:
            context = attend(query, key, value, mask, Dropout(self.dropout_rate), train=train)
        else:
            context = attend_onward(query, past, (key, value), mask)
        return self._dense((width,), ("heads", "kv", "embed"), contracted=2, name="output")(context)

    @nn.compact
    def scores(self, x: Float[Array, "B L D"], mask: Mask) -> Float[Array, "B H L L"]:
        """What `__call__` takes the softmax of; 0 where the mask hides."""
        features = (self.num_heads, x.shape[-1] // self.num_heads)
        query, key = (
            self._dense(features, ("embed", "heads", "kv"), name=name)(x)
            for name in ("query", "key")
        )
        return jnp.where(mask.array(), scaled_scores(query, key), 0.0)

    def _dense(self, features, axes, *, name, contracted=1):
        return Dense(
            features,
            axes,
            contracted=contracted,
            initializer_range=(name == "output" and self.output_range) or self.initializer_range,
            precision=self.precision,
            name=name,
        )


def attend(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B M H K"],
    value: Float[Array, "B M H K"],
    mask: Mask,
    dropout: Dropout,
    *,
    train: bool,
) -> Float[Array, "B L H K"]:
    """softmax(Q K^T / sqrt(K)) V over the tokens that the mask shows (equation 1).

    Hidden tokens get a weight of exactly zero and pass no gradient.
    """
    kernel = attention_kernels.find(query, key, mask, dropout.rate if train else 0.0)
    if kernel is not None:
        return kernel(query, key, value, mask)
    scores_BHLM = scaled_scores(query, key)
    kept = dropout.kept(scores_BHLM.shape, train=train)
    return attended(scores_BHLM, mask.array(), kept, value)


def attend_onward(
    query: Float[Array, "B L H K"],
    past: Past,
    own: tuple[Float[Array, "B L H K"], Float[Array, "B L H K"]],
    mask: Mask,
) -> Float[Array, "B L H K"]:
    """`attend`, where keys and values lie in two places: M counts the past's, then their own.

    They are not put together: the past is long, and one token more is not worth a copy of it.
    """
    scores_BHLM = jnp.concatenate([scaled_scores(query, key) for key, _ in (past, own)], axis=-1)
    scores_BHLM = jnp.where(mask.array(), scores_BHLM, jnp.finfo(jnp.float32).min)
    weights_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(query.dtype)
    parts = jnp.split(weights_BHLM, [past[0].shape[1]], axis=-1)
    return sum(
        jnp.einsum("bhlm,bmhk->blhk", weights, value)
        for weights, (_, value) in zip(parts, (past, own), strict=True)
    )


def scaled_scores(
    query: Float[Array, "B L H K"], key: Float[Array, "B M H K"]
) -> Float[Array, "B H L M"]:
    """Q K^T / sqrt(K), in float32."""
    scores_BHLM = jnp.einsum("blhk,bmhk->bhlm", query, key).astype(jnp.float32)
    return scores_BHLM / math.sqrt(query.shape[-1])
