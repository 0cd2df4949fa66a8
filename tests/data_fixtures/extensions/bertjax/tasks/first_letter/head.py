"""Classifier of the first letter of a text: linear on the pooled output."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax import pretrainer
from bertjax.constraints import AnyText, Weight
from bertjax.interfaces import Batch
from bertjax.layers import losses
from bertjax.layers.heads import TaskClassifier, pooled_output
from bertjax.pretrainer import Encoded, Encoder, Sum


class Task(pretrainer.Task):
    """One class for each letter.

    Attributes:
      letters: The C classes; the dataset writes them.
      weight: Weight in the total loss.
    """

    letters: tuple[AnyText, ...]
    weight: Weight = 1.0

    reads_pooled = True
    metrics = (("accuracy", "max"),)
    fields_from_data = ("letters",)

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the cross entropy of the letter, in nats."""
        logits_BC, labels = self.scores(encoder, encoded, batch, train=train), batch["labels"]
        weights = batch.get("example_weight", jnp.ones(len(labels)))
        weight_sum = weights.sum()
        accuracy = (losses.count_correct(logits_BC, labels, weights), weight_sum)
        return losses.cross_entropy(logits_BC, labels, weights), weight_sum, {"accuracy": accuracy}

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Int[Array, " B"]:
        """Returns the class of the most likely letter."""
        return jnp.argmax(self.scores(encoder, encoded, batch, train=False), axis=-1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> Float[Array, "B C"]:
        """Returns the logits of the letters."""
        pooled = pooled_output(encoder, encoded, batch, pooler_act="tanh", mix_layer_norm=False)
        size, deviation = len(self.letters), encoder.initializer_range
        return TaskClassifier(size, deviation, name="classifier")(pooled)
