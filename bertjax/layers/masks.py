"""Attention masks, combined with `&`. True means: may be attended to.

A `Mask` stores its components separately, so that an attention kernel can compute the mask instead
of reading an array.
"""

import functools
import operator
from collections.abc import Mapping

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@flax.struct.dataclass
class Mask:
    """A conjunction of masks; None for a component that masks nothing.

    Attributes:
      key_mask: Which keys any query may attend to.
      packed_segment_ids: Tokens attend to tokens of the same id; 0 is padding.
      pairs: Which query may attend to which key.
      causal: Length of a sequence of which query i sees keys j <= i; 0 for no causal mask.
      window: (length of the sequence, w) where query i sees keys j with |i - j| <= w // 2; or None.
    """

    key_mask: Bool[Array, "#B M"] | None = None
    packed_segment_ids: Int[Array, "B L"] | None = None
    pairs: Bool[Array, "#B L M"] | None = None
    causal: int = flax.struct.field(pytree_node=False, default=0)
    window: tuple[int, int] | None = flax.struct.field(pytree_node=False, default=None)

    def __and__(self, other: "Mask") -> "Mask":
        """Combines two masks, of which at most one may have packed segments.

        Raises:
          ValueError: both have packed segments, or lengths or windows differ.
        """
        if self.packed_segment_ids is not None and other.packed_segment_ids is not None:
            raise ValueError(
                "masks cannot be combined: both have packed_segment_ids; use one array for both"
            )
        lengths = {self.causal, other.causal} - {0}
        if len(lengths) > 1:
            raise ValueError(
                f"causal masks of different lengths: got {self.causal} and {other.causal}"
            )
        packed_segment_ids = (
            other.packed_segment_ids if self.packed_segment_ids is None else self.packed_segment_ids
        )
        if self.window and other.window and self.window != other.window:
            raise ValueError(f"masks with different windows: got {self.window} and {other.window}")
        key_mask, pairs = (
            _intersect(self.key_mask, other.key_mask),
            _intersect(self.pairs, other.pairs),
        )
        return Mask(
            key_mask,
            packed_segment_ids,
            pairs,
            max(self.causal, other.causal),
            self.window or other.window,
        )

    def array(self) -> Bool[Array, "#B 1 #L M"]:
        """The mask as an array, with one row if all queries see the same keys."""
        parts = []
        if self.key_mask is not None:
            parts.append(self.key_mask[:, None, :])
        if self.packed_segment_ids is not None:
            same = self.packed_segment_ids[:, :, None] == self.packed_segment_ids[:, None, :]
            parts.append(same & (self.packed_segment_ids[:, None, :] != 0))
        if self.pairs is not None:
            parts.append(self.pairs)
        if self.causal:
            parts.append(jnp.tri(self.causal, dtype=bool)[None])
        if self.window is not None:
            length, width = self.window
            positions = jnp.arange(length)
            parts.append((abs(positions[:, None] - positions) <= width // 2)[None])
        return functools.reduce(operator.and_, parts)[:, None]


def _intersect(one: Array | None, other: Array | None) -> Array | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def padding(tokens: Bool[Array, "#B M"]) -> Mask:
    """Padding mask: every query sees all real tokens."""
    return Mask(key_mask=tokens)


def visible_matrix(pairs: Bool[Array, "#B L M"]) -> Mask:
    """Arbitrary mask: query l sees token m where `pairs[:, l, m]` (K-BERT, section 3.3)."""
    return Mask(pairs=pairs)


def packed(pack_ids: Int[Array, "B L"]) -> Mask:
    """Block-diagonal mask of texts packed into one row; id 0 is padding."""
    return Mask(packed_segment_ids=pack_ids)


def causal(length: int) -> Mask:
    """Causal mask: query l sees tokens m <= l (Vaswani et al. 2017, section 3.2.3)."""
    return Mask(causal=length)


def window(length: int, width: int) -> Mask:
    """Local attention: query i sees keys j with |i - j| <= width // 2 (Beltagy et al. 2020, 3.1).

    Raises:
      ValueError: the width is not positive.
    """
    if width < 1:
        raise ValueError(f"width of an attention window: got {width}, expected an integer >= 1")
    return Mask(window=(length, width))


def prefix(first: Bool[Array, "B L"]) -> Bool[Array, "B L L"]:
    """Prefix-LM mask: bidirectional within the prefix, causal after it (Dong et al. 2019, 3.3).

    Args:
      first: Which tokens belong to the prefix, at the beginning of the row.
    """
    return first[:, None, :] | jnp.tri(first.shape[1], dtype=bool)


def unified(
    kind: Int[Array, " B"], attention_mask: Bool[Array, "B L"], segments: Int[Array, "B L"]
) -> Bool[Array, "B L L"]:
    """Masks of a unified language model, one of four kinds per example (Dong et al. 2019, 2.3).

    Args:
      kind: 0 bidirectional, 1 left-to-right, 2 right-to-left, 3 sequence-to-sequence: from the
        first segment to the second.
      attention_mask: Padding mask.
      segments: 0 for the first segment, 1 for the second.
    """
    before = jnp.tri(attention_mask.shape[1], dtype=bool)[None]
    views = jnp.ones_like(before), before, before.mT, prefix((segments == 0) & attention_mask)
    chosen = kind[:, None, None] == jnp.arange(4)
    seen_BLM = sum(view & chosen[..., n, None] for n, view in enumerate(views)) > 0
    return seen_BLM & attention_mask[:, None, :]


def bidirectional_or_causal(
    is_causal: Bool[Array, " B"], attention_mask: Bool[Array, "B L"] | Bool[Array, "B L M"]
) -> Bool[Array, "B L L"]:
    """Masks of a batch in which some examples have causal attention, the others bidirectional.

    Args:
      is_causal: Which examples have causal attention.
      attention_mask: Padding mask or visible matrix, which holds for all examples.
    """
    seen = attention_mask if attention_mask.ndim == 3 else attention_mask[:, None, :]
    before = jnp.tri(attention_mask.shape[-1], dtype=bool)
    return seen & (before | ~is_causal[:, None, None])


def padding_mask(attention_mask: Bool[Array, "B L"] | Bool[Array, "B L M"]) -> Bool[Array, "B M"]:
    """Which tokens are not padding: those that any query may attend to."""
    return attention_mask.any(axis=1) if attention_mask.ndim == 3 else attention_mask


def mean(
    sequence: Float[Array, "B L D"], attention_mask: Bool[Array, "B L"] | Bool[Array, "B L M"]
) -> Float[Array, "B D"]:
    """The mean of the vectors of all tokens that are not padding."""
    mask = padding_mask(attention_mask)[..., None]
    total = jnp.where(mask, sequence, 0).sum(axis=1)
    return total / jnp.maximum(mask.sum(axis=1), 1)


def sentence_trees(branches: Int[Array, "B L"], entities: Int[Array, "B L"]) -> Mask:
    """Visible matrices of sentence trees (K-BERT, section 3.3).

    Tokens of one branch see each other; so do the tokens of a branch and those of its entity.

    Args:
      branches: The branch of each token; 0 for the text itself, the trunk.
      entities: The entity that a token of the trunk belongs to, or that its branch is about; or 0.
    """

    def equal(ids):
        return ids[:, :, None] == ids[:, None, :]

    trunk = branches == 0
    of_trunk = trunk[:, :, None] | trunk[:, None, :]
    about = equal(entities) & (entities > 0)[:, :, None] & of_trunk
    return visible_matrix(equal(branches) | about)


def order_masks(order: Int[Array, "B L"]) -> tuple[Bool[Array, "B 1 L L"], Bool[Array, "1 1 L L"]]:
    """Masks of a factorisation order (Yang et al. 2019, section 2.2).

    Args:
      order: Position of each token in the order; -1 for tokens that all queries see.

    Returns:
      The mask of tokens that precede the query in the order, and the mask of the query itself.
    """
    queries, keys = order[:, None, :, None], order[:, None, None, :]
    return (keys < 0) | (keys < queries), jnp.eye(order.shape[1], dtype=bool)[None, None]


def from_batch(batch: Mapping[str, Array]) -> Mask:
    """The mask of a batch, from `attention_mask` (rank 2 or 3), `pack_ids` and `branch_ids`."""
    mask = jnp.asarray(batch["attention_mask"])
    mask = padding(mask) if mask.ndim == 2 else visible_matrix(mask)
    if "pack_ids" in batch:
        mask = mask & packed(batch["pack_ids"])
    if "branch_ids" in batch:
        mask = mask & sentence_trees(batch["branch_ids"], batch["entity_ids"])
    return mask
