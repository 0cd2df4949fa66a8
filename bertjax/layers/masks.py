"""Attention masks, all built here. True means: may be attended to.

A mask says what it is made of, for a kernel of attention need not read what it can work out; masks
are combined with `&`.
"""

import functools
import operator
from collections.abc import Mapping

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@flax.struct.dataclass
class Mask:
    """Which keys a query sees: those that all of these show; what is None hides nothing.

    Attributes:
      there: Which keys are there.
      packed_segment_ids: Whose neighbours a token sees: those of its own number; 0 is padding.
      pairs: Which query sees which key, whatever it follows from.
      causal: The length of a sequence whose tokens see none that come later; 0 for no such rule.
      window: (length of the sequence, w) where query i sees keys j with |i - j| <= w // 2; or None.
    """

    there: Bool[Array, "#B M"] | None = None
    packed_segment_ids: Int[Array, "B L"] | None = None
    pairs: Bool[Array, "#B L M"] | None = None
    causal: int = flax.struct.field(pytree_node=False, default=0)
    window: tuple[int, int] | None = flax.struct.field(pytree_node=False, default=None)

    def __and__(self, other: "Mask") -> "Mask":
        """What both show; of packs, one of them may speak.

        Raises:
          ValueError: both have packs, or lengths or windows differ.
        """
        if self.packed_segment_ids is not None and other.packed_segment_ids is not None:
            raise ValueError("two masks with packs: put the packs of both into one array")
        lengths = {self.causal, other.causal} - {0}
        if len(lengths) > 1:
            raise ValueError(f"causal masks of {self.causal} and of {other.causal} tokens")
        packed_segment_ids = (
            other.packed_segment_ids if self.packed_segment_ids is None else self.packed_segment_ids
        )
        if self.window and other.window and self.window != other.window:
            raise ValueError(f"masks with different windows: {self.window} and {other.window}")
        there, pairs = _both(self.there, other.there), _both(self.pairs, other.pairs)
        return Mask(
            there,
            packed_segment_ids,
            pairs,
            max(self.causal, other.causal),
            self.window or other.window,
        )

    def array(self) -> Bool[Array, "#B 1 #L M"]:
        """The mask written out, with one row for all queries where these see the same keys."""
        shown = []
        if self.there is not None:
            shown.append(self.there[:, None, :])
        if self.packed_segment_ids is not None:
            same = self.packed_segment_ids[:, :, None] == self.packed_segment_ids[:, None, :]
            shown.append(same & (self.packed_segment_ids[:, None, :] != 0))
        if self.pairs is not None:
            shown.append(self.pairs)
        if self.causal:
            shown.append(jnp.tri(self.causal, dtype=bool)[None])
        if self.window is not None:
            length, width = self.window
            positions = jnp.arange(length)
            shown.append((abs(positions[:, None] - positions) <= width // 2)[None])
        return functools.reduce(operator.and_, shown)[:, None]


def _both(one: Array | None, other: Array | None) -> Array | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def padding(tokens: Bool[Array, "#B M"]) -> Mask:
    """Every query sees the tokens that are there."""
    return Mask(there=tokens)


def visible_matrix(pairs: Bool[Array, "#B L M"]) -> Mask:
    """Query l sees token m where `pairs[:, l, m]` (K-BERT, section 3.3)."""
    return Mask(pairs=pairs)


def packed(pack_ids: Int[Array, "B L"]) -> Mask:
    """Neighbours packed into one row see only themselves; pack 0 is padding."""
    return Mask(packed_segment_ids=pack_ids)


def causal(length: int) -> Mask:
    """Query l sees the tokens up to itself (Vaswani et al. 2017, section 3.2.3)."""
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
    """A prefix sees itself whole, the rest sees it and what came before (Dong et al. 2019, 3.3).

    Args:
      first: Which tokens are of the prefix; they stand before all others.
    """
    return first[:, None, :] | jnp.tri(first.shape[1], dtype=bool)


def unified(
    kind: Int[Array, " B"], there: Bool[Array, "B L"], segments: Int[Array, "B L"]
) -> Bool[Array, "B L L"]:
    """Who sees whom in each of the ways of a unified language model (Dong et al. 2019, 2.3).

    Args:
      kind: Of each example: 0 bidirectional, 1 from left to right, 2 from right to left, 3 from
        the first segment to the second.
      there: Which tokens are there.
      segments: 0 for the first segment, 1 for the second.
    """
    before = jnp.tri(there.shape[1], dtype=bool)[None]
    views = jnp.ones_like(before), before, before.mT, prefix((segments == 0) & there)
    chosen = kind[:, None, None] == jnp.arange(4)
    seen_BLM = sum(view & chosen[..., n, None] for n, view in enumerate(views)) > 0
    return seen_BLM & there[:, None, :]


def padding_mask(attention_mask: Bool[Array, "B L"] | Bool[Array, "B L M"]) -> Bool[Array, "B M"]:
    """Which tokens are there: those that any query may attend to."""
    return attention_mask.any(axis=1) if attention_mask.ndim == 3 else attention_mask


def mean(
    sequence: Float[Array, "B L D"], attention_mask: Bool[Array, "B L"] | Bool[Array, "B L M"]
) -> Float[Array, "B D"]:
    """The mean of the vectors of all tokens that are there."""
    there = padding_mask(attention_mask)[..., None]
    total = jnp.where(there, sequence, 0).sum(axis=1)
    return total / jnp.maximum(there.sum(axis=1), 1)


def sentence_trees(branches: Int[Array, "B L"], entities: Int[Array, "B L"]) -> Mask:
    """The visible matrices of texts with knowledge in them (K-BERT, section 3.3).

    Args:
      branches: The branch that a token is of; 0 for the text itself, the trunk.
      entities: The entity that a token of the trunk belongs to, or that its branch is about; or 0.

    Returns:
      Tokens of one branch see each other, and so do those of the trunk; those of a branch and of
      its entity see each other besides.
    """

    def equal(ids):
        return ids[:, :, None] == ids[:, None, :]

    trunk = branches == 0
    of_trunk = trunk[:, :, None] | trunk[:, None, :]
    about = equal(entities) & (entities > 0)[:, :, None] & of_trunk
    return visible_matrix(equal(branches) | about)


def ordered(order: Int[Array, "B L"]) -> tuple[Bool[Array, "B 1 L L"], Bool[Array, "1 1 L L"]]:
    """Who sees whom where tokens are predicted one after the other (Yang et al. 2019, section 2.2).

    Args:
      order: When a token is predicted; -1 for those that all others see.

    Returns:
      Query l sees token m that comes before it in this order; and query l sees itself.
    """
    queries, keys = order[:, None, :, None], order[:, None, None, :]
    return (keys < 0) | (keys < queries), jnp.eye(order.shape[1], dtype=bool)[None, None]


def from_batch(batch: Mapping[str, Array]) -> Mask:
    """The mask that a batch asks for: `attention_mask` (rank 2 or 3), `pack_ids`, `branch_ids`."""
    mask = jnp.asarray(batch["attention_mask"])
    mask = padding(mask) if mask.ndim == 2 else visible_matrix(mask)
    if "pack_ids" in batch:
        mask = mask & packed(batch["pack_ids"])
    if "branch_ids" in batch:
        mask = mask & sentence_trees(batch["branch_ids"], batch["entity_ids"])
    return mask
