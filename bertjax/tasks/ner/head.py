"""Token classification head for NER: a linear layer on the first token of each word."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax import pretrainer
from bertjax.constraints import AnyText, DropoutRate, Weight
from bertjax.interfaces import Batch
from bertjax.layers import heads as layers_heads
from bertjax.layers import losses
from bertjax.layers.dropout import Dropout
from bertjax.layers.heads import TaskClassifier
from bertjax.layers.width_scaling import output_stddev
from bertjax.pretrainer import Encoded, Encoder, Sum


class Task(pretrainer.Task):
    """Token classification (Devlin et al. 2019, section 5.3): dropout and a linear layer, no CRF.

    `token_labels` are 1 + the class at the first token of a word, and 0 elsewhere.

    Attributes:
      labels: The names of the classes, C of them; set from the training data.
      classifier_dropout: Dropout rate of the token vectors.
      mix_layer_norm: Whether layers are normalised before a scalar mix (`layers/heads.py`).
      token_transform: Whether each token passes the transform of a prediction head first: dense,
        activation, LayerNorm, as in ModernBERT's classes of transformers.
      weight: Weight in the total loss.
    """

    labels: tuple[AnyText, ...]
    classifier_dropout: DropoutRate = 0.1
    mix_layer_norm: bool = False
    token_transform: bool = False
    weight: Weight = 1.0

    metrics = (("accuracy", "max"),)
    fields_from_data = ("labels",)
    pipeline_tag = "token-classification"

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the cross entropy over the words, in nats."""
        return word_loss(*self.scores(encoder, encoded, batch, train=train), batch)

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Int[Array, "B L"]:
        """Returns the index of the most likely class of every token."""
        return jnp.argmax(self.scores(encoder, encoded, batch, train=False)[0], axis=-1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B L C"], Float[Array, "B L"]]:
        """Returns the logits of the classes, and the weight, of every token."""
        sequence = layers_heads.token_output(
            encoder,
            encoded,
            mix_layer_norm=self.mix_layer_norm,
            transform=self.token_transform,
        )
        sequence = Dropout(self.classifier_dropout)(sequence, train=train)
        logits = TaskClassifier(len(self.labels), output_stddev(encoder), name="classifier")(
            sequence
        )
        return logits, word_weights(batch)


def word_weights(batch: Batch) -> Float[Array, "B L"]:
    """Returns the weight of each token: 1 at the first token of a word, 0 in padding examples."""
    begins = (batch["token_labels"] > 0).astype(jnp.float32)
    return batch.get("example_weight", jnp.ones(len(begins)))[:, None] * begins


def word_loss(
    logits: Float[Array, "B L C"], weights: Float[Array, "B L"], batch: Batch
) -> tuple[Array, Array, dict[str, Sum]]:
    """Sums the cross entropy over the words, in nats, and counts correct predictions.

    Args:
      logits: Logits of the classes.
      weights: From `word_weights`.
      batch: A batch with `token_labels`.

    Returns:
      The loss sum, the weight sum and the `accuracy` metric, as `Objective.loss`.
    """
    labels = jnp.maximum(batch["token_labels"] - 1, 0)
    weight_sum = weights.sum()
    accuracy = (losses.count_correct(logits, labels, weights), weight_sum)
    loss_sum = losses.cross_entropy(logits, labels, weights)
    return loss_sum, weight_sum, {"accuracy": accuracy}
