"""Token classification head for NER: a class for the first token of each word."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.constraints import AnyText, DropoutRate, Weight
from bertjax.interfaces import Batch
from bertjax.layers import heads as layers_heads
from bertjax.layers import losses
from bertjax.layers.dropout import Dropout
from bertjax.layers.heads import TaskClassifier
from bertjax.pretrainer import Encoded, Encoder, Sum


class Task(nn.Module):
    """Devlin et al. 2019, section 5.3: a linear map of the first token of each word, no CRF.

    `token_labels` are 1 + the class where a word begins, and 0 everywhere else.

    Attributes:
      labels: The names of the classes, C of them: of a recipe none, the data tells them.
      classifier_dropout: Dropout of the tokens' vectors.
      mix_layer_norm: Whether layers that are weighed are normalised (`layers/heads.py`).
      weight: Share in the total loss.
    """

    labels: tuple[AnyText, ...]
    classifier_dropout: DropoutRate = 0.1
    mix_layer_norm: bool = False
    weight: Weight = 1.0

    rewrites_input = False
    predicts_tokens = False
    metrics = (("accuracy", "max"),)
    pipeline_tag = "token-classification"

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        return batch

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of each word, in nats."""
        return word_loss(*self.scores(encoder, encoded, batch, train=train), batch)

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Int[Array, "B L"]:
        """The most likely class of every token."""
        return jnp.argmax(self.scores(encoder, encoded, batch, train=False)[0], axis=-1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B L C"], Float[Array, "B L"]]:
        """Scores of the classes of every token, and how much each token counts."""
        sequence = layers_heads.token_output(encoded, mix_layer_norm=self.mix_layer_norm)
        sequence = Dropout(self.classifier_dropout)(sequence, train=train)
        logits = TaskClassifier(len(self.labels), encoder.initializer_range, name="classifier")(
            sequence
        )
        return logits, word_weights(batch)


def word_weights(batch: Batch) -> Float[Array, "B L"]:
    """How much each token counts: 1 at the beginning of a word, of an example that is one."""
    begins = (batch["token_labels"] > 0).astype(jnp.float32)
    return batch.get("example_weight", jnp.ones(len(begins)))[:, None] * begins


def word_loss(
    logits: Float[Array, "B L C"], weights: Float[Array, "B L"], batch: Batch
) -> tuple[Array, Array, dict[str, Sum]]:
    """Cross entropy of each word, in nats, and how many of them were right."""
    labels = jnp.maximum(batch["token_labels"] - 1, 0)
    weight_sum = weights.sum()
    accuracy = (losses.correct(logits, labels, weights), weight_sum)
    loss_sum = losses.cross_entropy(logits, labels, weights)
    return loss_sum, weight_sum, {"accuracy": accuracy}
