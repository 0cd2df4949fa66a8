"""Segment recurrence (Dai et al. 2019, section 3.2) and prediction orders of permutation LMs.

The memory is stored in variables of the collection "carry", whose first axis is the batch. Without
that collection every row starts with an empty memory.

The functions for permutation language models (Yang et al. 2019) take one random key per example and
run inside the jitted step.
"""

from collections.abc import Mapping

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from bertjax.layers.masking import take_lowest


@flax.struct.dataclass
class MemoryState:
    """Memory at the beginning of a step; None without memory.

    Attributes:
      states: Inputs of every layer.
      mask: Which of the T positions contain a token of the text that a row continues.
    """

    states: Float[Array, "N B T D"] | None = None
    mask: Bool[Array, "B T"] | None = None


class Memory(nn.Module):
    """Memory of the last `length` tokens of every row, the newest last.

    Attributes:
      length: T.
      dtype: Dtype of the states.
    """

    length: int
    dtype: str = "float32"

    @nn.compact
    def __call__(self, rows: int, layers: int, width: int) -> tuple[nn.Variable, nn.Variable]:
        """Returns the two variables: states [B N T D], and which positions are filled [B T]."""

        def zeros(*shape, dtype):
            axes = ("batch", "layers", None, None) if len(shape) == 4 else ("batch", None)
            boxed = nn.with_logical_partitioning(nn.initializers.zeros, axes)
            return lambda: boxed(None, shape, dtype)

        states = zeros(rows, layers, self.length, width, dtype=self.dtype)
        filled = zeros(rows, self.length, dtype=bool)
        return self.variable("carry", "states", states), self.variable("carry", "filled", filled)

    @nn.nowrap
    def is_carried(self, batch: Mapping[str, Array]) -> bool:
        """Whether the memory is carried from batch to batch."""
        given = self.is_initializing() or self.has_variable("carry", "states")
        return self.length > 0 and "memory_mask" in batch and given

    def recall(self, batch: Mapping[str, Array], layers: int, width: int) -> MemoryState:
        """Returns the memory of the text that each row of the batch continues."""
        if not self.is_carried(batch):
            return MemoryState()
        states, filled = self(len(batch["input_ids"]), layers, width)
        mask = filled.value & batch["is_continuation"][:, None]
        return MemoryState(states.value.swapaxes(0, 1), mask)

    def keep(
        self, batch: Mapping[str, Array], recall: MemoryState, states: Float[Array, "N B L D"]
    ):
        """Stores the inputs of each layer for the next batch, without gradient."""
        if recall.states is None or self.is_initializing():
            return
        mask = jnp.concatenate([recall.mask, batch["memory_mask"]], axis=1)
        # Empty positions are moved to the front, so that distances count only tokens of the text.
        newest = jnp.argsort(mask, axis=1, stable=True)[:, -self.length :]
        both = jnp.concatenate([recall.states, states.astype(self.dtype)], axis=2)
        newest_states = jnp.take_along_axis(both, newest[None, :, :, None], axis=2)
        variables = self(both.shape[1], both.shape[0], both.shape[3])
        variables[0].value = jax.lax.stop_gradient(newest_states.swapaxes(0, 1))
        variables[1].value = jnp.take_along_axis(mask, newest, axis=1)


# numpy, since a JAX array would initialise the device when this module is imported.
_FILLING, _NEVER = np.uint32(1 << 30), np.uint32(1 << 31)
"""Lowest ranks of tokens outside all spans, and of tokens that must not be chosen."""


def choose_spans(
    keys: Key[Array, "B"],
    maskable: Bool[Array, "B L"],
    word_starts: Bool[Array, "B L"],
    budget: Int[Array, "B"],
    limit: int,
    *,
    context: float,
    max_length: int,
) -> tuple[Int[Array, "B P"], Float[Array, "B P"]]:
    """Samples spans of 1 to `max_length` words, each at a random offset within its own context.

    A length n is sampled with probability proportional to 1/n; the context is `context` times as
    long as the span (section 3.1). Contexts follow each other from the first token on. Then exactly
    `budget` tokens are chosen: spans in random order, the last one truncated if necessary, or
    single random tokens if there are too few spans. The published code instead stops at the budget
    from the left, so that it predicts the ends of texts of long words less often.

    Returns:
      `limit` positions per example, and weights: 1 for the first `budget` of them, else 0.
    """
    length = maskable.shape[-1]
    shares = 1 / np.arange(1, max_length + 1)
    shares = np.cumsum(shares / shares.sum())[:-1].astype(np.float32)

    def rank_one(key, maskable, starts):
        starts = starts | (jnp.arange(length) == 0)
        word_index = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(starts)])
        word_start = jnp.full(length + max_length + 1, length)
        at = jnp.where(starts, word_index[:-1], length + max_length + 1)
        word_start = word_start.at[at].set(jnp.arange(length), mode="drop")

        def span(cursor, uniform):
            words = 1 + jnp.sum(uniform[0] >= shares)
            left = (uniform[1] * (context * words - words + 1)).astype(jnp.int32)
            word = word_index[jnp.minimum(cursor + left, length)]
            begin, end = word_start[word], word_start[word + words]
            cursor = jnp.maximum(end, cursor + jnp.round(context * (end - begin)).astype(jnp.int32))
            return jnp.minimum(cursor, length), (begin, end)

        span_key, fill_key, order_key = jax.random.split(key, 3)
        uniform = jax.random.uniform(span_key, (limit, 2))
        _, (begin, end) = lax.scan(span, jnp.int32(0), uniform)
        span_starts = jnp.zeros(length + 1, jnp.int32).at[begin].add(1)
        span_ends = jnp.zeros(length + 1, jnp.int32).at[end].add(1)
        inside = jnp.cumsum(span_starts - span_ends)[:length] > 0
        number = jnp.clip(jnp.cumsum(span_starts)[:length] - 1, 0, limit - 1)
        place = jax.random.permutation(order_key, limit).astype(jnp.uint32)
        in_span = place[number] * length + jnp.arange(length, dtype=jnp.uint32)
        alone = _FILLING + (jax.random.bits(fill_key, (length,), jnp.uint32) >> 2)
        return jnp.where(maskable, jnp.where(inside, in_span, alone), _NEVER)

    return take_lowest(jax.vmap(rank_one)(keys, maskable, word_starts), budget, limit)


def sample_order(
    keys: Key[Array, "B"],
    positions: Int[Array, "B P"],
    weights: Float[Array, "B P"],
    special: Bool[Array, "B L"],
) -> Int[Array, "B L"]:
    """Samples an order of the predicted and the special tokens; -1 for all others.

    Only the last part of a factorisation order is predicted (section 2.3), and attention within the
    first part is bidirectional. Special tokens are part of the order without being predicted, as in
    the published code, so that they attend to predicted tokens too.
    """
    length = special.shape[-1]
    at = jnp.where(weights > 0, positions, length)
    ordered = jax.vmap(lambda row, at: row.at[at].set(True, mode="drop"))(special, at)
    ranks = jax.vmap(lambda key: jax.random.permutation(key, length))(keys)
    return jnp.where(ordered, ranks.astype(jnp.int32), -1)
