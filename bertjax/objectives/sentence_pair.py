"""Pair classification: next sentence prediction (BERT) or sentence order prediction (ALBERT).

`config.data.pair` determines which of the two; both classify the pooled output.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertjax import pretrainer
from bertjax.constraints import Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses
from bertjax.layers.heads import Classifier
from bertjax.layers.width_scaling import output_stddev
from bertjax.pretrainer import Encoded, Encoder, RandomRows, Sum, SummaryMetric


class Objective(pretrainer.Objective):
    """Label 0: the second segment follows the first. Label 1: it is random, or the two are swapped.

    Devlin et al. 2019, section 3.1, task 2; Lan et al. 2020, section 3.1.

    Attributes:
      weight: Share in the total loss.
    """

    weight: Weight = 1.0

    metrics = (("accuracy", "max"),)
    reads_pooled = True
    summary = (SummaryMetric("accuracy", "pair accuracy", "%", lambda metrics: 0.5, "chance"),)

    @staticmethod
    def batch_keys(fields: Mapping[str, Any]) -> Mapping[str, RandomRows]:
        return {"pair_label": lambda random, shape: random.integers(0, 2, shape[0], np.int32)}

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the pair's label."""
        logits_BC = self.logits(encoder, encoded)
        labels = batch["pair_label"]
        weights = batch.get("example_weight", jnp.ones(labels.shape))
        weight_sum = weights.sum()
        accuracy = (losses.count_correct(logits_BC, labels, weights), weight_sum)
        return losses.cross_entropy(logits_BC, labels, weights), weight_sum, {"accuracy": accuracy}

    @nn.compact
    def logits(self, encoder: Encoder, encoded: Encoded) -> Float[Array, "B C"]:
        """Logits of the two labels.

        Raises:
          UserError: the model has no pooler.
        """
        if encoded.pooled is None:
            raise UserError(
                "objective sentence_pair: got a model without a pooler "
                f"({type(encoder).__module__.rpartition('.')[2]}), expected one with a pooler, "
                "such as bert; set --config.objectives.sentence_pair=none, or choose another model"
            )
        return Classifier(2, output_stddev(encoder), name="classifier")(encoded.pooled)
