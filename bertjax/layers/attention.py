"""Multi-head scaled dot-product attention, self and cross (Vaswani et al. 2017, section 3.2).

The scores are the largest arrays of a step. Autodiff of a softmax with mask and dropout would save
the scores, their exponentials, the dropped-out weights and zeros of the same shape as residuals,
all but one in float32; the custom gradient saves the weights alone.

Cross attention computes the keys and values of the source once; a decoder uses the same layer with
the cached keys and values of its previous tokens (section 3.2.3).
"""

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.layers import attention_kernels, local_attention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.dense import Dense, Precision, contract
from bertjax.layers.dropout import Dropout, DropoutMask, apply_mask
from bertjax.layers.masks import Mask, window
from bertjax.layers.position_encodings import Alibi, Rotary


def masked_softmax_attention(
    scores: Float[Array, "B H L M"],
    mask: Bool[Array, "#B #H #L M"],
    dropout_mask: DropoutMask | None,
    value: Float[Array, "B M H K"],
    precision: Precision,
) -> Float[Array, "B L H K"]:
    """Softmax over the unmasked scores, with dropout, times the values.

    Masked keys have a weight of exactly zero and receive no gradient, even if all keys are masked.

    Args:
      scores: Scores of the keys.
      mask: Which keys a query sees.
      dropout_mask: Dropout of the weights; None for none.
      value: Values.
      precision: Types of the weights and of the result.
    """
    keep, scale = dropout_mask or (None, 1.0)
    return _attention(scale, precision, scores, mask, keep, value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(scale, precision, scores, mask, keep, value):
    return _forward(scale, precision, scores, mask, keep, value)[0]


def _forward(scale, precision, scores, mask, keep, value):
    masked_BHLM = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights_BHLM = jnp.where(mask, jax.nn.softmax(masked_BHLM, axis=-1), 0)
    weights_BHLM = weights_BHLM.astype(precision.operands)
    dropped_BHLM = apply_mask(weights_BHLM, _dropout_mask(keep, scale))
    value = value.astype(precision.operands)
    context = contract("bhlm,bmhk->blhk", dropped_BHLM, value, precision)
    return context, (weights_BHLM, keep, value)


def _backward(scale, precision, residuals, gradient):
    weights_BHLM, keep, value = residuals
    dropout_mask = _dropout_mask(keep, scale)
    dropped_BHLM = apply_mask(weights_BHLM, dropout_mask)
    to_value = contract("bhlm,blhk->bmhk", dropped_BHLM, gradient, precision)
    to_weights = contract("blhk,bmhk->bhlm", gradient, value, precision)
    to_weights = apply_mask(to_weights, dropout_mask).astype(jnp.float32)
    # The gradient of a softmax w is w (g - w . g), which is zero where w is zero.
    weighted = weights_BHLM * to_weights
    to_scores = weighted - weights_BHLM * weighted.sum(axis=-1, keepdims=True)
    return to_scores, None, None, to_value


def _dropout_mask(keep, scale):
    return None if keep is None else DropoutMask(keep, scale)


_attention.defvjp(_forward, _backward)


Past = tuple[Float[Array, "B H K T"], Float[Array, "B H T K"]]
"""Cached keys and values of earlier tokens (`layers/kv_cache.py`)."""


class SelfAttention(nn.Module):
    """Multi-head self-attention.

    Attributes:
      num_heads: H; divides the hidden width.
      dropout_rate: Dropout of the attention weights.
      initializer_range: Initial standard deviation of all kernels.
      precision: Types of operands and results; the softmax is float32.
      output_range: Initial standard deviation of the output kernel; 0 for `initializer_range`.
      use_bias: Whether the four projections have biases.
      rotary: Rotary position embedding of queries and keys; None for none.
      window: Width w of local attention: query i sees keys j with |i - j| <= w // 2; 0 for global
        attention.
      kernel: Kernel that computes it (`layers/attention_kernels.py`).
      alibi: Biases of the scores by distance; None for none.
      query_scale: Factor of the queries.
    """

    num_heads: int
    dropout_rate: float = 0.1
    initializer_range: float = 0.02
    precision: Precision = Precision()
    output_range: float = 0.0
    use_bias: bool = True
    rotary: Rotary | None = None
    window: int = 0
    kernel: KernelName = ""
    alibi: Alibi | None = None
    query_scale: float = 1.0

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        mask: Mask,
        past: Past | None = None,
        *,
        train: bool,
    ) -> Float[Array, "B L D"]:
        """Attends to the sequence and to cached keys and values.

        Where the collection "cache" is mutable, the keys and values of x are written to it.

        Args:
          x: The sequence.
          mask: Which keys a query sees; columns of the past come first.
          past: Keys and values of earlier tokens.
          train: Whether dropout is applied; training with a past is not supported.

        Raises:
          ValueError: a past was given to attention with rotary embeddings, ALiBi or a window.
        """
        if past is not None and (self.rotary or self.alibi or self.window):
            raise ValueError(
                "self-attention with rotary embeddings, ALiBi or a window does not support a "
                "key-value cache: got a past, expected None"
            )
        width = x.shape[-1]
        query, key = self._query_and_key(x)
        value = self._heads(x, "value")
        mask = self._add_window(mask, x.shape[1])
        if self.is_mutable_collection("cache") and not self.is_initializing():
            self.put_variable("cache", "key", key)
            self.put_variable("cache", "value", value)
        if past is None:
            dropout = Dropout(self.dropout_rate)
            bias = self.alibi and self.alibi(x.shape[1])
            context = attend(
                query,
                key,
                value,
                mask,
                dropout,
                self.precision,
                bias=bias,
                kernel=self.kernel,
                train=train,
            )
        else:
            context = attend_with_cache(query, past, (key, value), mask)
        return self._dense((width,), ("heads", "kv", "embed"), contracted=2, name="output")(context)

    @nn.compact
    def scores(self, x: Float[Array, "B L D"], mask: Mask) -> Float[Array, "B H L L"]:
        """The scores before the softmax; 0 where the mask is False."""
        query, key = self._query_and_key(x)
        mask = self._add_window(mask, x.shape[1])
        bias = self.alibi and self.alibi(x.shape[1])
        return jnp.where(mask.array(), scaled_scores(query, key, self.precision, bias), 0.0)

    def _query_and_key(self, x):
        query, key = self._heads(x, "query"), self._heads(x, "key")
        if self.query_scale != 1:
            query = query * self.query_scale
        if self.rotary is None:
            return query, key
        return self.rotary(query), self.rotary(key)

    def _heads(self, x, name):
        features = (self.num_heads, x.shape[-1] // self.num_heads)
        return self._dense(features, ("embed", "heads", "kv"), name=name)(x)

    def _add_window(self, mask, length):
        return mask & window(length, self.window) if self.window else mask

    def _dense(self, features, axes, *, name, contracted=1):
        return Dense(
            features,
            axes,
            contracted=contracted,
            use_bias=self.use_bias,
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
    precision: Precision,
    *,
    bias: Float[Array, "H L M"] | None = None,
    kernel: str = "",
    train: bool,
) -> Float[Array, "B L H K"]:
    """Scaled dot-product attention, softmax(Q K^T / sqrt(K)) V (equation 1).

    Masked keys have a weight of exactly zero and receive no gradient. Must be called inside a
    compact method, which owns the random stream of the dropout.

    Args:
      query: Q.
      key: K.
      value: V.
      mask: Which keys a query sees.
      dropout: Dropout of the weights.
      precision: Types of operands and results.
      bias: Added to the scores, in float32; None for none.
      kernel: Kernel that computes it (`layers/attention_kernels.py`).
      train: Whether dropout is applied.
    """
    dropout_keys = dropout.sample_keys(train=train)
    in_blocks = local_attention.is_applicable(mask)
    fused = attention_kernels.find(
        query,
        key,
        mask,
        dropout_keys,
        bias=bias is not None,
        local=in_blocks,
        requested=kernel,
        train=train,
    )
    if fused is not None:
        return fused(query, key, value, mask)

    def attend_to_all(query, key, value, visible):
        scores_BHLM = scaled_scores(query, key, precision, bias)
        dropout_mask = dropout_keys and dropout_keys.mask(scores_BHLM.shape)
        return masked_softmax_attention(scores_BHLM, visible, dropout_mask, value, precision)

    if bias is not None or not in_blocks:
        return attend_to_all(query, key, value, mask.array())
    context = attend_to_all(*local_attention.split(query, key, value, mask))
    return local_attention.merge(context, query.shape[1], len(query))


def attend_with_cache(
    query: Float[Array, "B L H K"],
    past: Past,
    own: tuple[Float[Array, "B L H K"], Float[Array, "B L H K"]],
    mask: Mask,
) -> Float[Array, "B L H K"]:
    """Attention to cached keys and values and to those of the new tokens; M counts the past first.

    They are not concatenated, which would copy the whole cache for every new token.
    """
    (past_keys, past_values), (key, value) = past, own
    products = [
        jnp.einsum("blhk,bhkt->bhlt", query, past_keys),
        jnp.einsum("blhk,bmhk->bhlm", query, key),
    ]
    scores_BHLM = _scale(jnp.concatenate(products, axis=-1), query)
    scores_BHLM = jnp.where(mask.array(), scores_BHLM, jnp.finfo(jnp.float32).min)
    weights_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(query.dtype)
    to_past, to_own = jnp.split(weights_BHLM, [past_values.shape[2]], axis=-1)
    return jnp.einsum("bhlt,bhtk->blhk", to_past, past_values) + jnp.einsum(
        "bhlm,bmhk->blhk", to_own, value
    )


def scaled_scores(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B M H K"],
    precision: Precision,
    bias: Float[Array, "H L M"] | None = None,
) -> Float[Array, "B H L M"]:
    """Q K^T / sqrt(K), in float32, plus the bias if there is one."""
    scores_BHLM = _scale(contract("blhk,bmhk->bhlm", query, key, precision), query)
    return scores_BHLM if bias is None else scores_BHLM + bias


def _scale(products: Float[Array, "B H L M"], query: Array) -> Float[Array, "B H L M"]:
    scores_BHLM = products.astype(jnp.float32)
    scores_BHLM /= math.sqrt(query.shape[-1])
    return scores_BHLM


class KeysValues(NamedTuple):
    """Keys and values of a sequence."""

    key: Float[Array, "*lead M H K"]
    value: Float[Array, "*lead M H K"]


class CrossAttention(nn.Module):
    """Multi-head attention whose queries come from one sequence, keys and values from another.

    Attributes:
      num_heads: H; divides the hidden width.
      dropout_rate: Dropout of the attention weights.
      initializer_range: Initial standard deviation of all kernels.
      precision: Types of operands and results; the softmax is float32.
      kernel: Kernel that computes it (`layers/attention_kernels.py`).
    """

    num_heads: int
    dropout_rate: float = 0.1
    initializer_range: float = 0.02
    precision: Precision = Precision()
    kernel: KernelName = ""

    @nn.compact
    def read(self, memory: Float[Array, "B M D"]) -> KeysValues:
        """Computes the keys and values of the sequence that is attended to."""
        return KeysValues(self._project(memory, "key"), self._project(memory, "value"))

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        memory: KeysValues,
        mask: Mask,
        *,
        train: bool,
    ) -> Float[Array, "B L D"]:
        """Attends from `x` to a memory."""
        query, dropout = self._project(x, "query"), Dropout(self.dropout_rate)
        context = attend(
            query,
            memory.key,
            memory.value,
            mask,
            dropout,
            self.precision,
            kernel=self.kernel,
            train=train,
        )
        return self._dense((x.shape[-1],), ("heads", "kv", "embed"), "output", 2)(context)

    def _project(self, x: Float[Array, "B M D"], name: str) -> Float[Array, "B M H K"]:
        features = (self.num_heads, x.shape[-1] // self.num_heads)
        return self._dense(features, ("embed", "heads", "kv"), name)(x)

    def _dense(self, features, axes, name, contracted=1):
        return Dense(
            features,
            axes,
            contracted=contracted,
            initializer_range=self.initializer_range,
            precision=self.precision,
            name=name,
        )
