"""Head of SuperGLUE's tasks of text pairs: the sequence head with the classes of a table row."""

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.constraints import AnyText, OneOf
from bertjax.interfaces import Batch
from bertjax.metrics.sequences import SINGLE_LABEL
from bertjax.pretrainer import Encoded, Encoder
from bertjax.tasks.sequence.head import SequenceHead
from bertjax.tasks.superglue.table import names_of, superglue_task

NAMES = names_of("superglue")


class Task(SequenceHead, kw_only=True):
    """Linear classifier on [CLS] of a text pair (Wang et al. 2019, SuperGLUE, section 4.1).

    MultiRC classifies every answer as right or wrong, ReCoRD every candidate entity, one by one.

    Attributes:
      dataset: Name of the task in `tasks/superglue/table.py`.
      labels: Names of the classes; written by the run.
      texts: Names of the two texts in predictions; written by the run.
    """

    dataset: Annotated[str, OneOf(NAMES)]
    labels: tuple[AnyText, ...] = ()
    texts: tuple[AnyText, ...] = ()

    fields_from_data = ("labels", "texts")
    exchanged_as = "glue"
    problem_type = SINGLE_LABEL

    @property
    def num_outputs(self) -> int:
        return len(superglue_task(self.dataset).labels)

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, "B C"]:
        """Returns the logits of the classes, in float32."""
        return self.scores(encoder, encoded, batch, train=False)[0].astype(jnp.float32)
