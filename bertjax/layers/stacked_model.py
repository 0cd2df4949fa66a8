"""Base classes of models: a stack of blocks over word embeddings, and a tied output layer."""

import flax.linen as nn
from jaxtyping import Array, Float

from bertjax.constraints import PositiveInt
from bertjax.layers.dense import Initializer, PrecisionName, get_precision, truncated_normal
from bertjax.layers.embeddings import Embedding
from bertjax.layers.stack import RematPolicy, Stack


class TiedEmbeddings:
    """Mixin with a tied output layer, for models whose `word_embeddings` have width D."""

    def attend(self, hidden: Float[Array, "*lead E"]) -> Float[Array, "*lead V"]:
        """Logits over the vocabulary, by the tied word embeddings."""
        return self.word_embeddings.attend(hidden)

    @property
    def embedding_size(self) -> int:
        """E, the width of the word embeddings."""
        return self.hidden_size


class StackedModel(TiedEmbeddings, nn.Module, kw_only=True):
    """Base class of models that are a stack of blocks, with the fields that all of them have.

    A subclass declares its hyperparameters, among them `hidden_size`, `num_hidden_layers` and
    `initializer_range`; its `setup` assigns `word_embeddings`.

    Attributes:
      output_hidden_states: Whether `Encoded.hidden_states` is filled: embeddings, then each layer,
        before a last normalisation.
      precision: A key of PRECISIONS of `layers/dense.py`, such as "bfloat16".
      remat: Rematerialisation policy of the backward pass (`layers/stack.py`).
      unroll: Layers compiled in one piece (`layers/stack.py`).
    """

    output_hidden_states: bool = False
    precision: PrecisionName = "float32"
    remat: RematPolicy = "none"
    unroll: PositiveInt = 1

    def _table(
        self, rows: int, axis: str | None = None, initializer: Initializer | None = None
    ) -> Embedding:
        """A table of embeddings [rows E], truncated normal by default; `axis` names its rows."""
        return Embedding(
            rows,
            self.embedding_size,
            (axis, "embed"),
            initializer or truncated_normal(self.initializer_range),
            get_precision(self.precision),
        )

    def _stack(self, block: nn.Module, *, keep_hidden_states: bool = False) -> Stack:
        """All layers, each with its own parameters."""
        return Stack(
            block,
            self.num_hidden_layers,
            remat=self.remat,
            unroll=self.unroll,
            keep_hidden_states=keep_hidden_states or self.output_hidden_states,
        )
