"""Cross-encoder: one score for a query and a passage that are read together."""

from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.constraints import AnyText, OneOf, PositiveInt
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses
from bertjax.metrics.sequences import REGRESSION
from bertjax.pretrainer import Encoded, Encoder, Sum
from bertjax.tasks.sequence.head import SequenceHead

BCE, SOFTMAX = "bce", "softmax"
LOSS_TYPES = (BCE, SOFTMAX)


class Task(SequenceHead, kw_only=True):
    """Cross-encoder (monoBERT, Nogueira and Cho 2019, section 3.2) with a single output.

    The paper has two classes and their cross entropy; the difference of two logits is one logit.
    Labels are 1 for a positive, 0 for a hard negative, or scores in [0, 1].

    Attributes:
      loss_type: bce, pointwise: binary cross entropy of each pair; or softmax, listwise: cross
        entropy of the positive among itself and its hard negatives (Gao et al. 2021, "Rethink
        training of BERT rerankers", equation 4), which are consecutive in the batch.
      texts: Columns of query and passage; written by the run.
      candidates_per_example: Passages of a training example; written by the run.
    """

    loss_type: Annotated[str, OneOf(LOSS_TYPES)] = BCE
    texts: tuple[AnyText, ...] = ()
    candidates_per_example: PositiveInt = 1

    metrics = (("accuracy", "max"),)
    fields_from_data = ("texts", "candidates_per_example")
    exchanged_as = "glue"
    problem_type = REGRESSION
    num_outputs = 1

    @nn.nowrap
    def rows_per_example(self) -> int:
        """Returns the number of passages of a list."""
        return self.candidates_per_example if self.loss_type == SOFTMAX else 1

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the loss over the pairs, or over the lists, in nats.

        Raises:
          UserError: a list is in several parts of the batch.
        """
        logits_BC, weights_B = self.scores(encoder, encoded, batch, train=train)
        logits_B, labels_B = logits_BC[:, 0].astype(jnp.float32), batch["labels"]
        weight_sum = weights_B.sum()
        if self.loss_type == BCE:
            loss = losses.sigmoid_cross_entropy(logits_B, jnp.zeros_like(logits_B, bool), weights_B)
            loss -= jnp.sum(weights_B * labels_B * logits_B)
            hits = weights_B * ((logits_B > 0) == (labels_B > 0.5))
            return loss, weight_sum, {"accuracy": (hits.sum(), weight_sum)}
        group = self.candidates_per_example
        if self.is_initializing():  # with a batch of one sequence
            logits_B, weights_B = (jnp.repeat(rows, group) for rows in (logits_B, weights_B))
        if len(logits_B) % group:
            raise UserError(
                f"got {len(logits_B)} sequences per part of a batch, expected a multiple of {group}"
                ", the passages of a query; change batch_size or the number of devices"
            )
        logits_QC, weights_Q = logits_B.reshape(-1, group), weights_B[::group]
        positive_Q = jnp.zeros(len(logits_QC), jnp.int32)
        weight_sum = weights_Q.sum()
        accuracy = losses.count_correct(logits_QC, positive_Q, weights_Q), weight_sum
        loss = losses.cross_entropy(logits_QC, positive_Q, weights_Q)
        return loss, weight_sum, {"accuracy": accuracy}

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, " B"]:
        """Returns the score of every pair, a logit, in float32."""
        return self.scores(encoder, encoded, batch, train=False)[0][:, 0].astype(jnp.float32)
