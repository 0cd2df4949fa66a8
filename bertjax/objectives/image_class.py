"""Image classification (Dosovitskiy et al. 2021, section 3.1)."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from bertjax import pretrainer
from bertjax.constraints import PositiveInt, Weight
from bertjax.interfaces import Batch
from bertjax.layers import losses
from bertjax.layers.heads import Classifier
from bertjax.pretrainer import Encoded, Encoder, Sum, SummaryMetric


class Objective(pretrainer.Objective):
    """Linear classifier of the first token, or of the pooled output.

    Attributes:
      num_labels: C.
      weight: Share in the total loss.
    """

    num_labels: PositiveInt
    weight: Weight = 1.0

    metrics = (("accuracy", "max"),)
    summary = (SummaryMetric("accuracy", "image accuracy", "%"),)

    @nn.compact
    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy in nats."""
        first = encoded.sequence[:, 0] if encoded.pooled is None else encoded.pooled
        logits_BC = Classifier(self.num_labels, encoder.initializer_range, name="classifier")(first)
        labels = batch["labels"]
        weights = batch.get("example_weight", jnp.ones(len(labels)))
        weight_sum = weights.sum()
        accuracy = (losses.count_correct(logits_BC, labels, weights), weight_sum)
        return losses.cross_entropy(logits_BC, labels, weights), weight_sum, {"accuracy": accuracy}
