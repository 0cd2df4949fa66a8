"""Key-value cache of causal decoding: `prefill` reads prompts, `decode` the following tokens.

The cache has one column per decoding step for all rows of a batch; rows without a token leave it
empty. So prompts of different lengths end in the same column, and one update in place writes the
new column of all layers. Encoding a text at once or in parts gives the same vectors.
"""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import Embedding
from bertjax.layers.masks import Mask, visible_matrix
from bertjax.layers.stack import Stack


@flax.struct.dataclass
class Cache:
    """Keys and values of all layers for the tokens so far.

    Attributes:
      keys: Keys of every layer and column.
      values: Values of every layer and column.
      there: Which columns hold a token of a row.
      end: Number of columns in use.
    """

    keys: Float[Array, "N B T H K"]
    values: Float[Array, "N B T H K"]
    there: Bool[Array, "B T"]
    end: Int[Array, ""]

    def positions(self, there: Bool[Array, "B L"]) -> Int[Array, "B L"]:
        """Positions of new tokens: the number of tokens before them in their row."""
        before = self.there.sum(axis=1, keepdims=True)
        return before + token_positions(there)

    def mask(self, mask: Mask) -> Mask:
        """Mask of new tokens: they see all cached tokens, and each other according to `mask`."""
        among = mask.array()[:, 0]
        here = jnp.broadcast_to(self.there[:, None], (*among.shape[:2], self.there.shape[1]))
        return visible_matrix(jnp.concatenate([here, among], axis=-1))

    def extended(
        self,
        keys: Float[Array, "N B L H K"],
        values: Float[Array, "N B L H K"],
        there: Bool[Array, "B L"],
    ) -> "Cache":
        """The cache with new columns, for which `max_new_tokens` must leave space."""
        put = jax.lax.dynamic_update_slice_in_dim
        return Cache(
            put(self.keys, keys, self.end, axis=2),
            put(self.values, values, self.end, axis=2),
            put(self.there, there, self.end, axis=1),
            self.end + there.shape[1],
        )

    def take(self, rows: Int[Array, " S"]) -> "Cache":
        """Gathers rows of the cache, in any order and with repetitions, as beam search does."""
        return Cache(
            jnp.take(self.keys, rows, axis=1),
            jnp.take(self.values, rows, axis=1),
            jnp.take(self.there, rows, axis=0),
            self.end,
        )


def init_cache(
    keys: Float[Array, "N B L H K"],
    values: Float[Array, "N B L H K"],
    there: Bool[Array, "B L"],
    max_new_tokens: int,
) -> Cache:
    """A cache of the given columns, with space for `max_new_tokens` more."""
    behind = (0, max_new_tokens)
    around = ((0, 0), (0, 0), behind, (0, 0), (0, 0))
    end = jnp.int32(there.shape[1])
    wide = jnp.pad(there, ((0, 0), behind))
    return Cache(jnp.pad(keys, around), jnp.pad(values, around), wide, end)


def token_positions(there: Bool[Array, "B L"]) -> Int[Array, "B L"]:
    """The position of every token among the real tokens of its row; 0 for padding."""
    return jnp.where(there, jnp.cumsum(there, axis=1) - 1, 0)


class Reader(nn.Module):
    """Causal language model without head: embeddings and a stack of blocks.

    Attributes:
      words: Word embeddings.
      places: Position embeddings.
      layers: Blocks that accept a past (`layers/attention.py`).
      dropout_rate: Dropout of the embeddings.
    """

    words: Embedding
    places: Embedding
    layers: Stack
    dropout_rate: float = 0.1

    def setup(self):
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"], PyTree]:
        """Encodes whole texts.

        Returns:
          The last layer's output, the embeddings, and the outputs of all layers if they are kept.
        """
        length = batch["input_ids"].shape[1]
        positions = batch.get("position_ids", jnp.arange(length)[None])
        embedded = self._embedded(batch, positions, train=train)
        mask = masks.causal(length) & masks.from_batch(batch)
        sequence, states = self.layers(embedded, mask, train=train)
        return sequence, embedded, states

    def prefill(self, batch: Batch, max_new_tokens: int) -> tuple[Float[Array, "B L D"], Cache]:
        """Encodes prompts, padded anywhere; returns a cache for `max_new_tokens` more tokens."""
        there = batch["attention_mask"]
        positions = token_positions(there)
        sequence, _ = self.layers(
            self._embedded(batch, positions, train=False), _visible(there), train=False
        )
        return sequence, init_cache(*self._made(), there, max_new_tokens)

    def decode(self, batch: Batch, cache: Cache) -> tuple[Float[Array, "B L D"], Cache]:
        """Encodes the next tokens with a cache; like `prefill`, needs `mutable=["cache"]`."""
        there = batch["attention_mask"]
        embedded = self._embedded(batch, cache.positions(there), train=False)
        past = (cache.keys, cache.values)
        mask = cache.mask(_visible(there))
        sequence, _ = self.layers(embedded, mask, train=False, each=past)
        return sequence, cache.extended(*self._made(), there)

    def _embedded(self, batch: Batch, positions: Array, *, train: bool) -> Float[Array, "B L D"]:
        x = self.words(batch["input_ids"]) + self.places(positions)
        return self.dropout(x, train=train)

    def _made(self) -> tuple[Float[Array, "N B L H K"], Float[Array, "N B L H K"]]:
        """The keys and values that the layers have written to the collection "cache"."""
        left = self.layers.variables["cache"]["block"]["attention"]
        return left["key"], left["value"]


def _visible(there: Bool[Array, "B L"]) -> Mask:
    return masks.causal(there.shape[1]) & masks.padding(there)
