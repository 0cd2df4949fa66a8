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
      filled: Which columns contain a token of each row.
      end: Number of columns in use.
    """

    keys: Float[Array, "N B T H K"]
    values: Float[Array, "N B T H K"]
    filled: Bool[Array, "B T"]
    end: Int[Array, ""]

    def positions(self, attention_mask: Bool[Array, "B L"]) -> Int[Array, "B L"]:
        """Positions of new tokens: the number of tokens before them in their row."""
        before = self.filled.sum(axis=1, keepdims=True)
        return before + token_positions(attention_mask)

    def mask(self, mask: Mask) -> Mask:
        """Mask of new tokens: they see all cached tokens, and each other according to `mask`."""
        new = mask.array()[:, 0]
        cached = jnp.broadcast_to(self.filled[:, None], (*new.shape[:2], self.filled.shape[1]))
        return visible_matrix(jnp.concatenate([cached, new], axis=-1))

    def append(
        self,
        keys: Float[Array, "N B L H K"],
        values: Float[Array, "N B L H K"],
        attention_mask: Bool[Array, "B L"],
    ) -> "Cache":
        """Appends columns, for which `max_new_tokens` of `init_cache` must have reserved space."""
        put = jax.lax.dynamic_update_slice_in_dim
        return Cache(
            put(self.keys, keys, self.end, axis=2),
            put(self.values, values, self.end, axis=2),
            put(self.filled, attention_mask, self.end, axis=1),
            self.end + attention_mask.shape[1],
        )

    def take(self, rows: Int[Array, " S"]) -> "Cache":
        """Gathers rows of the cache, in any order and with repetitions, as beam search does."""
        return Cache(
            jnp.take(self.keys, rows, axis=1),
            jnp.take(self.values, rows, axis=1),
            jnp.take(self.filled, rows, axis=0),
            self.end,
        )


def init_cache(
    keys: Float[Array, "N B L H K"],
    values: Float[Array, "N B L H K"],
    attention_mask: Bool[Array, "B L"],
    max_new_tokens: int,
) -> Cache:
    """Creates a cache of the given columns, with space for `max_new_tokens` more."""
    space = (0, max_new_tokens)
    padding = ((0, 0), (0, 0), space, (0, 0), (0, 0))
    filled = jnp.pad(attention_mask, ((0, 0), space))
    end = jnp.int32(attention_mask.shape[1])
    return Cache(jnp.pad(keys, padding), jnp.pad(values, padding), filled, end)


def token_positions(attention_mask: Bool[Array, "B L"]) -> Int[Array, "B L"]:
    """The position of every token among the real tokens of its row; 0 for padding."""
    return jnp.where(attention_mask, jnp.cumsum(attention_mask, axis=1) - 1, 0)


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
          The last layer's output, the embeddings, and the outputs of all layers or None.
        """
        length = batch["input_ids"].shape[1]
        positions = batch.get("position_ids", jnp.arange(length)[None])
        embeddings = self._embed(batch, positions, train=train)
        mask = masks.causal(length) & masks.from_batch(batch)
        sequence, states = self.layers(embeddings, mask, train=train)
        return sequence, embeddings, states

    def prefill(self, batch: Batch, max_new_tokens: int) -> tuple[Float[Array, "B L D"], Cache]:
        """Encodes prompts, padded anywhere; returns a cache for `max_new_tokens` more tokens."""
        attention_mask = batch["attention_mask"]
        positions = token_positions(attention_mask)
        sequence, _ = self.layers(
            self._embed(batch, positions, train=False), _visible(attention_mask), train=False
        )
        return sequence, init_cache(*self._new_keys_values(), attention_mask, max_new_tokens)

    def decode(self, batch: Batch, cache: Cache) -> tuple[Float[Array, "B L D"], Cache]:
        """Encodes the next tokens with a cache; like `prefill`, requires `mutable=["cache"]`."""
        attention_mask = batch["attention_mask"]
        embeddings = self._embed(batch, cache.positions(attention_mask), train=False)
        past = (cache.keys, cache.values)
        mask = cache.mask(_visible(attention_mask))
        sequence, _ = self.layers(embeddings, mask, train=False, layer_inputs=past)
        return sequence, cache.append(*self._new_keys_values(), attention_mask)

    def _embed(self, batch: Batch, positions: Array, *, train: bool) -> Float[Array, "B L D"]:
        x = self.words(batch["input_ids"]) + self.places(positions)
        return self.dropout(x, train=train)

    def _new_keys_values(self) -> tuple[Float[Array, "N B L H K"], Float[Array, "N B L H K"]]:
        """The keys and values that the layers wrote to the collection "cache"."""
        cache = self.layers.variables["cache"]["block"]["attention"]
        return cache["key"], cache["value"]


def _visible(attention_mask: Bool[Array, "B L"]) -> Mask:
    return masks.causal(attention_mask.shape[1]) & masks.padding(attention_mask)
