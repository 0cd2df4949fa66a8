"""Head of GLUE and tasks in its file format: the sequence head with the classes of a table row."""

from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from bertjax.constraints import AnyText, NonNegativeInt, OneOf
from bertjax.interfaces import Batch
from bertjax.metrics.sequences import REGRESSION
from bertjax.pretrainer import Encoded, Encoder
from bertjax.tasks.glue.table import TASKS, glue_task
from bertjax.tasks.sequence.head import SequenceHead

BETWEEN = "+"
"""Separator of task names in multi-task fine-tuning: "rte+mrpc"."""


class GlueTasks:
    """Constraint on `dataset`: a task name of the table, or several joined by `+`."""

    def violation(self, value: Any) -> str | None:
        known = OneOf(task.name for task in TASKS)
        names = value.split(BETWEEN) if isinstance(value, str) else [value]
        return next(filter(None, map(known.violation, names)), None)


class Task(SequenceHead):
    """Head of the tasks of `tasks/glue/table.py`, which determines classes and metrics.

    Attributes:
      dataset: Name of the task in the table.
      labels: Names of the classes in the order of the table, for predictions and exports; empty
        for the labels of the table.
      task_id: Index of this task in a mixture: only examples with it in `task_ids` count. Without
        that batch key all count.
    """

    dataset: Annotated[str, GlueTasks()]
    labels: tuple[AnyText, ...] = ()
    task_id: NonNegativeInt = 0

    @property
    def num_outputs(self) -> int:
        return glue_task(self.dataset).num_labels

    @property
    def problem_type(self) -> str:
        return glue_task(self.dataset).problem_type

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Num[Array, " B"]:
        """Returns the index of the most likely class, or the score, of each example."""
        logits_BC, _ = self.scores(encoder, encoded, batch, train=False)
        if self.problem_type == REGRESSION:
            return logits_BC[:, 0]
        return jnp.argmax(logits_BC, axis=-1)

    @nn.nowrap
    def example_weights(self, batch: Batch, size: int) -> Float[Array, " B"]:
        weights = super().example_weights(batch, size)
        if "task_ids" in batch:
            weights = weights * (batch["task_ids"] == self.task_id)
        return weights
