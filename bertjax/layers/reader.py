"""Reading a text from its beginning on: each token sees itself and what came before.

Whole texts are read at once; or a part of one, of which the keys and values are kept, and then what
follows it. Either way gives the same vectors.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from bertjax.interfaces import Batch
from bertjax.layers import cache as caches
from bertjax.layers import masks
from bertjax.layers.cache import Cache
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import Embedding
from bertjax.layers.masks import Mask
from bertjax.layers.stack import Stack


class Reader(nn.Module):
    """Embeddings of words and places, and a stack of blocks under a causal mask.

    Attributes:
      words: The word embeddings.
      places: The position embeddings.
      layers: Blocks that take a past (`layers/attention.py`).
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
        """Reads whole texts.

        Returns:
          The last layer's output, the embeddings, and of all layers the outputs if they are kept.
        """
        length = batch["input_ids"].shape[1]
        positions = batch.get("position_ids", jnp.arange(length)[None])
        embedded = self._embedded(batch, positions, train=train)
        mask = masks.causal(length) & masks.from_batch(batch)
        sequence, states = self.layers(embedded, mask, train=train)
        return sequence, embedded, states

    def begin(self, batch: Batch, room: int) -> tuple[Float[Array, "B L D"], Cache]:
        """Reads the beginnings of texts, padded anywhere; with room for so many tokens more."""
        there = batch["attention_mask"]
        positions = caches.positions(there)
        sequence, _ = self.layers(
            self._embedded(batch, positions, train=False), _visible(there), train=False
        )
        return sequence, caches.begun(*self._made(), there, room)

    def extend(self, batch: Batch, cache: Cache) -> tuple[Float[Array, "B L D"], Cache]:
        """Reads what follows, given what was read; needs `mutable=["cache"]`, as `begin` does."""
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
        """The keys and values that the layers have just left."""
        left = self.layers.variables["cache"]["block"]["attention"]
        return left["key"], left["value"]


def _visible(there: Bool[Array, "B L"]) -> Mask:
    return masks.causal(there.shape[1]) & masks.padding(there)
