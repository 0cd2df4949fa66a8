"""The one place where attention masks are built. True means: may be attended to.

A mask has the shape [B 1 L M] or [B 1 1 M]; masks are combined with `&`.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def padding(tokens: Bool[Array, "B M"]) -> Bool[Array, "B 1 1 M"]:
    """Every query sees the tokens that are there."""
    return tokens[:, None, None, :]


def visible_matrix(pairs: Bool[Array, "B L M"]) -> Bool[Array, "B 1 L M"]:
    """Query l sees token m where `pairs[:, l, m]` (K-BERT, section 3.3)."""
    return pairs[:, None, :, :]


def packed(pack_ids: Int[Array, "B L"]) -> Bool[Array, "B 1 L L"]:
    """Neighbours packed into one row see only themselves; pack 0 is padding."""
    same = pack_ids[:, :, None] == pack_ids[:, None, :]
    return (same & (pack_ids[:, None, :] != 0))[:, None, :, :]


def tokens(attention_mask: Bool[Array, "B M"] | Bool[Array, "B L M"]) -> Bool[Array, "B M"]:
    """Tokens that are there: those that anything may attend to."""
    return attention_mask if attention_mask.ndim == 2 else attention_mask.any(axis=1)


def from_batch(batch: Mapping[str, Array]) -> Bool[Array, "B 1 #L M"]:
    """The mask that a batch asks for by `attention_mask` (rank 2 or 3) and `pack_ids`."""
    mask = batch["attention_mask"]
    mask = padding(mask) if mask.ndim == 2 else visible_matrix(mask)
    if "pack_ids" in batch:
        mask = mask & packed(batch["pack_ids"])
    return jnp.asarray(mask)
