"""Classification or regression head for one or two sentences: linear on the pooled output."""

from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from bertjax import pretrainer
from bertjax.constraints import AnyText, DropoutRate, NonNegativeInt, OneOf, Weight
from bertjax.interfaces import Batch
from bertjax.layers import heads as layers_heads
from bertjax.layers import losses
from bertjax.layers.dense import ActivationName
from bertjax.layers.dropout import Dropout
from bertjax.layers.heads import TaskClassifier
from bertjax.layers.width_scaling import output_stddev
from bertjax.pretrainer import Encoded, Encoder, Sum
from bertjax.tasks.glue.table import TASKS, glue_task

BETWEEN = "+"
"""Separator of task names in multi-task fine-tuning: "rte+mrpc"."""


class GlueTasks:
    """Constraint on `dataset`: a task name of the table, or several joined by `+`."""

    def complaint(self, value: Any) -> str | None:
        known = OneOf(task.name for task in TASKS)
        names = value.split(BETWEEN) if isinstance(value, str) else [value]
        return next(filter(None, map(known.complaint, names)), None)


class Task(pretrainer.Task):
    """Sequence classification or regression (Devlin et al. 2019, section 4.1 and appendix A.3).

    Dropout on the pooled output, then a linear layer with one output per class, or one for a
    regression. An encoder without a pooler gets one here (`layers/heads.py`).

    Attributes:
      dataset: Name of the task in `tasks/glue/table.py`; determines labels and metrics.
      classifier_dropout: Dropout rate of the pooled output.
      pooler_act: Activation of the added pooler, if the encoder has none: tanh as in RoBERTa;
        transformers uses relu for DistilBERT and gelu for ELECTRA.
      mix_layer_norm: Whether layers are normalised before a scalar mix (`layers/heads.py`).
      labels: Names of the classes in the order of the table, for predictions and exports; empty
        for the labels of the table.
      weight: Weight in the total loss.
      task_id: Index of this task in a mixture: only examples with it in `task_ids` count. Without
        that batch key all count.
    """

    dataset: Annotated[str, GlueTasks()]
    classifier_dropout: DropoutRate = 0.1
    pooler_act: ActivationName = "tanh"
    mix_layer_norm: bool = False
    labels: tuple[AnyText, ...] = ()
    weight: Weight = 1.0
    task_id: NonNegativeInt = 0

    metrics = (("accuracy", "max"), ("absolute_error", "min"))  # of classes, of a score
    reads_pooled = True
    pipeline_tag = "text-classification"

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the cross entropy of the classes, in nats, or the squared error of the score."""
        logits_BC, weights = self.scores(encoder, encoded, batch, train=train)
        labels = batch["labels"]
        weight_sum = weights.sum()
        if not glue_task(self.dataset).labels:
            error = logits_BC[:, 0] - labels
            absolute = (jnp.sum(weights * jnp.abs(error)), weight_sum)
            return jnp.sum(weights * error**2), weight_sum, {"absolute_error": absolute}
        # In a mixture, labels of other tasks may be out of range; their weight is 0.
        labels = labels.astype(jnp.int32).clip(0, logits_BC.shape[-1] - 1)
        accuracy = (losses.count_correct(logits_BC, labels, weights), weight_sum)
        return losses.cross_entropy(logits_BC, labels, weights), weight_sum, {"accuracy": accuracy}

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Num[Array, " B"]:
        """Returns the index of the most likely class, or the score, of each example."""
        logits_BC, _ = self.scores(encoder, encoded, batch, train=False)
        if not glue_task(self.dataset).labels:
            return logits_BC[:, 0]
        return jnp.argmax(logits_BC, axis=-1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B C"], Float[Array, " B"]]:
        """Returns the logits of the classes, or one score, and the weight of each example."""
        pooled = layers_heads.pooled_output(
            encoder,
            encoded,
            batch,
            pooler_act=self.pooler_act,
            mix_layer_norm=self.mix_layer_norm,
        )
        pooled = Dropout(self.classifier_dropout)(pooled, train=train)
        num_labels = glue_task(self.dataset).num_labels
        logits_BC = TaskClassifier(num_labels, output_stddev(encoder), name="classifier")(pooled)
        weights = batch.get("example_weight", jnp.ones(len(logits_BC)))
        if "task_ids" in batch:
            weights = weights * (batch["task_ids"] == self.task_id)
        return logits_BC, weights
