"""Mean mixer: adds the mean of a sequence to each of its tokens; one layer without parameters."""

import flax.linen as nn
from jaxtyping import Array, Float

from bertjax.constraints import InitStddev, PositiveInt, check_module
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.dense import truncated_normal
from bertjax.layers.embeddings import Embedding
from bertjax.layers.heads import Pooler
from bertjax.pretrainer import Encoded


class Model(nn.Module):
    """Word embeddings and their mean over the sequence.

    Attributes:
      vocab_size: V.
      hidden_size: D.
      initializer_range: Standard deviation of the initial kernels and embeddings.
    """

    vocab_size: PositiveInt = 30522
    hidden_size: PositiveInt = 64
    initializer_range: InitStddev = 0.02

    def setup(self):
        check_module(self)
        self.word_embeddings = Embedding(
            self.vocab_size,
            self.hidden_size,
            ("vocab", "embed"),
            truncated_normal(self.initializer_range),
        )
        self.pooler = Pooler(self.initializer_range)

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        words = self.word_embeddings(batch["input_ids"])
        mean = masks.mean(words, batch["attention_mask"])
        sequence = words + mean[:, None]
        return Encoded(sequence, self.pooler(sequence))

    def attend(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Scores of the vocabulary: products with the word embeddings."""
        return self.word_embeddings.attend(hidden)
