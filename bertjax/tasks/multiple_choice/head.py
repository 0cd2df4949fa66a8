"""Multiple-choice head: one score per option, softmax over the options of a question."""

from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax import pretrainer
from bertjax.constraints import DropoutRate, OneOf, Weight, integer
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import heads as layers_heads
from bertjax.layers import losses
from bertjax.layers.dense import ActivationName
from bertjax.layers.dropout import Dropout
from bertjax.layers.heads import TaskClassifier
from bertjax.layers.width_scaling import output_stddev
from bertjax.pretrainer import Encoded, Encoder, Sum
from bertjax.tasks.multiple_choice import files as multiple_choice_files

ChoiceCount = Annotated[int, integer(2)]


class Task(pretrainer.Task):
    """Multiple choice (Devlin et al. 2019, section 4.4, SWAG; Liu et al. 2019, section 5.3, RACE).

    The score of an option is the dot product of the pooled output with one trained vector. Each row
    of a batch is a question with one of its options, and the options of a question are consecutive
    rows. `labels` are 1 for the correct option, else 0; -1 for the padding of a question with fewer
    options, which the softmax leaves out.

    Attributes:
      dataset: `race`, `swag` or `copa`.
      num_choices: C, number of options per question.
      classifier_dropout: Dropout rate of the pooled output.
      pooler_act: Activation of the added pooler, if the encoder has none.
      mix_layer_norm: Whether layers are normalised before a scalar mix (`layers/heads.py`).
      weight: Weight in the total loss.
    """

    dataset: Annotated[str, OneOf(multiple_choice_files.NAMES)] = "race"
    num_choices: ChoiceCount = 4
    classifier_dropout: DropoutRate = 0.1
    pooler_act: ActivationName = "tanh"
    mix_layer_norm: bool = False
    weight: Weight = 1.0

    metrics = (("accuracy", "max"),)
    reads_pooled = True
    pipeline_tag = "multiple-choice"

    @nn.nowrap
    def rows_per_example(self) -> int:
        """Returns the number of options of a question."""
        return self.num_choices

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the cross entropy over the options of each question, in nats."""
        logits, weights = self.scores(encoder, encoded, batch, train=train)
        labels = batch["labels"]
        if self.is_initializing():
            labels = jnp.repeat(labels, self.num_choices, 0)
        labels_QC = labels.reshape(logits.shape)
        logits = jnp.where(labels_QC < 0, jnp.finfo(logits.dtype).min, logits)
        labels = jnp.argmax(labels_QC, axis=-1)
        weight_sum = weights.sum()
        accuracy = (losses.count_correct(logits, labels, weights), weight_sum)
        return losses.cross_entropy(logits, labels, weights), weight_sum, {"accuracy": accuracy}

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, " B"]:
        """Returns the score of every option."""
        return self.scores(encoder, encoded, batch, train=False)[0].reshape(-1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "Q C"], Float[Array, " Q"]]:
        """Returns the logits of the options, and the weight, of each of the Q questions.

        Raises:
          UserError: the batch size is not a multiple of `num_choices`.
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
            # Parameters are initialised with one row, which is not a whole question.
            pooled, weights = (jnp.repeat(rows, self.num_choices, 0) for rows in (pooled, weights))
        if len(pooled) % self.num_choices:
            raise UserError(
                f"got {len(pooled)} sequences per microbatch, expected a multiple of num_choices="
                f"{self.num_choices}; change batch_size, microbatches or the number of devices"
            )
        pooled = Dropout(self.classifier_dropout)(pooled, train=train)
        logits = TaskClassifier(1, output_stddev(encoder), name="classifier")(pooled)
        return logits.reshape(-1, self.num_choices), weights[:: self.num_choices]
