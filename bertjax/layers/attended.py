"""What attention makes of its scores, keeping for the gradient one number of each instead of four.

Attention's scores are the largest arrays of a step. Differentiated by itself, a softmax under a
mask and dropout keeps the scores, their exponentials, what dropout left of them, and zeros in the
same shape, all but the last in float32; the gradient needs the weights.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.layers.dropout import Kept, scaled


def attended(
    scores: Float[Array, "B H L M"],
    mask: Bool[Array, "#B #H #L M"],
    kept: Kept | None,
    value: Float[Array, "B M H K"],
) -> Float[Array, "B L H K"]:
    """softmax(scores) of what the mask shows, after dropout, times the values.

    Hidden tokens get a weight of exactly zero and pass no gradient, also where all are hidden.
    """
    where, times = kept or (None, 1.0)
    return _attended(times, scores, mask, where, value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attended(times, scores, mask, where, value):
    return _forward(times, scores, mask, where, value)[0]


def _forward(times, scores, mask, where, value):
    shown_BHLM = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights_BHLM = jnp.where(mask, jax.nn.softmax(shown_BHLM, axis=-1), 0).astype(value.dtype)
    left_BHLM = scaled(weights_BHLM, _kept(where, times))
    context = jnp.einsum("bhlm,bmhk->blhk", left_BHLM, value)
    return context, (weights_BHLM, where, value)


def _backward(times, remembered, gradient):
    weights_BHLM, where, value = remembered
    kept = _kept(where, times)
    left_BHLM = scaled(weights_BHLM, kept)
    to_value = jnp.einsum("bhlm,blhk->bmhk", left_BHLM, gradient)
    to_weights = scaled(jnp.einsum("blhk,bmhk->bhlm", gradient, value), kept).astype(jnp.float32)
    # Of a softmax w: w (g - w . g), which is zero where w is.
    weighted = weights_BHLM * to_weights
    to_scores = weighted - weights_BHLM * weighted.sum(axis=-1, keepdims=True)
    return to_scores, None, None, to_value


def _kept(where, times):
    return None if where is None else Kept(where, times)


_attended.defvjp(_forward, _backward)
