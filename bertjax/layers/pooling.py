"""Pool the vectors of the tokens of a sequence to one vector of the text, without parameters."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.layers import masks

POOLINGS = ("mean", "weighted", "cls")


def pool(
    sequence: Float[Array, "B L D"],
    attention_mask: Bool[Array, "B L"] | Bool[Array, "B L M"],
    pooling: str,
    *,
    cls_last: bool = False,
) -> Float[Array, "B D"]:
    """Pools the tokens of every sequence, special ones included.

    Args:
      sequence: Vectors of the tokens.
      attention_mask: False for padding, which follows the text.
      pooling: `mean` (Sentence-BERT, Reimers and Gurevych 2019, section 3); `weighted`, the mean in
        which the weight of a token is its position, from 1 (SGPT, Muennighoff 2022, equation 2); or
        `cls`, the vector of [CLS].
      cls_last: Whether [CLS] is the last token, as in XLNet, instead of the first.
    """
    if pooling == "mean":
        return masks.mean(sequence, attention_mask)
    mask = masks.padding_mask(attention_mask)
    if pooling == "weighted":
        weights = jnp.where(mask, jnp.cumsum(mask, axis=1), 0).astype(sequence.dtype)[..., None]
        total = jnp.where(mask[..., None], weights * sequence, 0).sum(axis=1)
        return total / jnp.maximum(weights.sum(axis=1), 1)
    last = mask.sum(axis=1) - 1
    position = last if cls_last else jnp.zeros_like(last)
    return jnp.take_along_axis(sequence, position[:, None, None], axis=1)[:, 0]
