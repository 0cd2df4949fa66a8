"""Multiple-choice head: one score per option, softmax over the options of a question."""

from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.constraints import DropoutRate, OneOf, Weight, integer
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import heads as layers_heads
from bertjax.layers import losses
from bertjax.layers.dense import ActivationName
from bertjax.layers.dropout import Dropout
from bertjax.layers.heads import TaskClassifier
from bertjax.pretrainer import Encoded, Encoder, Sum
from bertjax.tasks.multiple_choice import files as multiple_choice_files

ChoiceCount = Annotated[int, integer(2)]


class Task(nn.Module):
    """Devlin et al. 2019, section 4.4 (SWAG); RoBERTa, section 5.3 (RACE): a vector dot product.

    Each row of a batch is a question with one of its answers, and the answers of a question follow
    each other. `labels` are 1 for the right one.

    Attributes:
      dataset: `race` or `swag`.
      num_choices: C, answers of each question.
      classifier_dropout: Dropout of the pooled output.
      pooler_act: Activation of the pooler that an encoder without one gets.
      mix_layer_norm: Whether layers that are weighed are normalised (`layers/heads.py`).
      weight: Share in the total loss.
    """

    dataset: Annotated[str, OneOf(multiple_choice_files.NAMES)] = "race"
    num_choices: ChoiceCount = 4
    classifier_dropout: DropoutRate = 0.1
    pooler_act: ActivationName = "tanh"
    mix_layer_norm: bool = False
    weight: Weight = 1.0

    rewrites_input = False
    predicts_tokens = False
    metrics = (("accuracy", "max"),)
    reads_pooled = True
    pipeline_tag = "multiple-choice"

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        return batch

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy over the answers of each question, in nats."""
        logits, weights = self.scores(encoder, encoded, batch, train=train)
        labels = batch["labels"]
        if self.is_initializing():
            labels = jnp.repeat(labels, self.num_choices, 0)
        labels = jnp.argmax(labels.reshape(logits.shape), axis=-1)
        weight_sum = weights.sum()
        accuracy = (losses.correct(logits, labels, weights), weight_sum)
        return losses.cross_entropy(logits, labels, weights), weight_sum, {"accuracy": accuracy}

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, " B"]:
        """The score of every answer."""
        return self.scores(encoder, encoded, batch, train=False)[0].reshape(-1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "Q C"], Float[Array, " Q"]]:
        """Scores of the answers to each question, and how much each question counts.

        Raises:
          UserError: the batch does not divide into whole questions.
        """
        pooled = layers_heads.pooled_output(
            encoder,
            encoded,
            batch,
            pooler_act=self.pooler_act,
            mix_layer_norm=self.mix_layer_norm,
        )
        weights = batch.get("example_weight", jnp.ones(len(pooled)))
        if self.is_initializing():
            # One row is enough to know the parameters.
            pooled, weights = (jnp.repeat(rows, self.num_choices, 0) for rows in (pooled, weights))
        if len(pooled) % self.num_choices:
            raise UserError(
                f"{len(pooled)} sequences at a time do not divide into questions of "
                f"{self.num_choices} answers: choose batch sizes, microbatches and devices so that "
                f"each gets a multiple of {self.num_choices}"
            )
        pooled = Dropout(self.classifier_dropout)(pooled, train=train)
        logits = TaskClassifier(1, encoder.initializer_range, name="classifier")(pooled)
        return logits.reshape(-1, self.num_choices), weights[:: self.num_choices]
