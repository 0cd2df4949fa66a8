"""Token count: predict the share of a row's positions that are not padding."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax import pretrainer
from bertjax.constraints import Weight
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.heads import Classifier
from bertjax.pretrainer import Encoded, Encoder, Sum, SummaryMetric


class Objective(pretrainer.Objective):
    """Squared error of the share, a sigmoid of a linear map of the pooled output.

    Attributes:
      weight: Weight in the total loss.
    """

    weight: Weight = 1.0

    reads_pooled = True
    metrics = (("absolute_error", "min"),)
    summary = (SummaryMetric("absolute_error", "token share error", "%"),)

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the squared error of each row."""
        share = masks.padding_mask(batch["attention_mask"]).mean(axis=1)
        error = self.predicted_share(encoder, encoded) - share
        weights = batch.get("example_weight", jnp.ones(len(share)))
        weight_sum = weights.sum()
        absolute = (jnp.sum(weights * jnp.abs(error)), weight_sum)
        return jnp.sum(weights * error**2), weight_sum, {"absolute_error": absolute}

    @nn.compact
    def predicted_share(self, encoder: Encoder, encoded: Encoded) -> Float[Array, " B"]:
        """Predicts the share of each row, in (0, 1)."""
        logits = Classifier(1, encoder.initializer_range, name="share")(encoded.pooled)
        return jax.nn.sigmoid(logits[:, 0])
