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

Layers = Array | tuple[Array, ...]
"""An array [N ...], or N arrays for layers that are unrolled: a slice of one array is copied."""


@flax.struct.dataclass
class Cache:
    """Keys and values of all layers for the tokens so far, as their matmuls read them.

    Attributes:
      keys: Keys of every layer and column, [B H K T].
      values: Values of every layer and column, [B H T K].
      filled: Which columns contain a token of each row.
      end: Number of columns in use.
    """

    keys: Layers
    values: Layers
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

        def put(old, new, axis):
            return jax.lax.dynamic_update_slice_in_dim(old, new, self.end, old.ndim + axis)

        if isinstance(self.keys, tuple):
            keys, values = tuple(keys), tuple(values)
        return Cache(
            jax.tree.map(lambda old, new: put(old, _columns_last(new), -1), self.keys, keys),
            jax.tree.map(lambda old, new: put(old, _heads_first(new), -2), self.values, values),
            put(self.filled, attention_mask, -1),
            self.end + attention_mask.shape[1],
        )

    def take(self, rows: Int[Array, " S"]) -> "Cache":
        """Gathers rows of the cache, in any order and with repetitions, as beam search does."""

        def gather(array):
            return jnp.take(array, rows, axis=array.ndim - 4)

        keys, values = jax.tree.map(gather, (self.keys, self.values))
        return Cache(keys, values, jnp.take(self.filled, rows, axis=0), self.end)


def init_cache(
    keys: Float[Array, "N B L H K"],
    values: Float[Array, "N B L H K"],
    attention_mask: Bool[Array, "B L"],
    max_new_tokens: int,
    *,
    unrolled: bool = False,
) -> Cache:
    """Creates a cache of the given columns, with space for `max_new_tokens` more.

    Args:
      keys: Keys of all layers.
      values: Values of all layers.
      attention_mask: Which columns contain a token of each row.
      max_new_tokens: Number of further columns.
      unrolled: Whether every layer has arrays of its own.
    """
    no, space = (0, 0), (0, max_new_tokens)
    keys = jnp.pad(_columns_last(keys), (no, no, no, no, space))
    values = jnp.pad(_heads_first(values), (no, no, no, space, no))
    filled, end = jnp.pad(attention_mask, (no, space)), jnp.int32(attention_mask.shape[1])
    if unrolled:
        return Cache(tuple(keys), tuple(values), filled, end)
    return Cache(keys, values, filled, end)


def _columns_last(keys: Float[Array, "*lead L H K"]) -> Float[Array, "*lead H K L"]:
    return jnp.moveaxis(keys, -3, -1)


def _heads_first(values: Float[Array, "*lead L H K"]) -> Float[Array, "*lead H L K"]:
    return jnp.moveaxis(values, -3, -2)


def token_positions(attention_mask: Bool[Array, "B L"]) -> Int[Array, "B L"]:
    """The position of every token among the real tokens of its row; 0 for padding."""
    return jnp.where(attention_mask, jnp.cumsum(attention_mask, axis=1) - 1, 0)


class Reader(nn.Module):
    """Causal language model without head: embeddings and a stack of blocks.

    Attributes:
      words: Word embeddings.
      positions: Position embeddings.
      layers: Blocks that accept a past (`layers/attention.py`).
      dropout_rate: Dropout of the embeddings.
    """

    words: Embedding
    positions: Embedding
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
        unrolled = self.layers.unroll >= self.layers.num_layers
        new = self._new_keys_values()
        return sequence, init_cache(*new, attention_mask, max_new_tokens, unrolled=unrolled)

    def decode(self, batch: Batch, cache: Cache) -> tuple[Float[Array, "B L D"], Cache]:
        """Encodes the next tokens with a cache; like `prefill`, requires `mutable=["cache"]`."""
        attention_mask = batch["attention_mask"]
        embeddings = self._embed(batch, cache.positions(attention_mask), train=False)
        past = tuple(
            jnp.stack(layers) if isinstance(layers, tuple) else layers
            for layers in (cache.keys, cache.values)
        )
        mask = cache.mask(_visible(attention_mask))
        sequence, _ = self.layers(embeddings, mask, train=False, layer_inputs=past)
        # XLA updates the cache in place, without copying it, only if all reads come before.
        sequence, new = jax.lax.optimization_barrier((sequence, self._new_keys_values()))
        return sequence, cache.append(*new, attention_mask)

    def _embed(self, batch: Batch, positions: Array, *, train: bool) -> Float[Array, "B L D"]:
        x = self.words(batch["input_ids"]) + self.positions(positions)
        return self.dropout(x, train=train)

    def _new_keys_values(self) -> tuple[Float[Array, "N B L H K"], Float[Array, "N B L H K"]]:
        """The keys and values that the layers wrote to the collection "cache"."""
        cache = self.layers.variables["cache"]["block"]["attention"]
        return cache["key"], cache["value"]


def _visible(attention_mask: Bool[Array, "B L"]) -> Mask:
    return masks.causal(attention_mask.shape[1]) & masks.padding(attention_mask)
