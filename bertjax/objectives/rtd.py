"""Replaced token detection (Clark et al. 2020, section 3.1): original or replaced, per token."""

import math
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax import pretrainer
from bertjax.constraints import Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses, masks
from bertjax.layers.dense import Dense, activation, get_precision
from bertjax.layers.heads import Classifier
from bertjax.layers.width_scaling import hidden_stddev, output_stddev
from bertjax.pretrainer import Encoded, Encoder, Sum, SummaryMetric


def _entropy(metrics: Mapping[str, float]) -> float:
    """Loss in nats of a classifier that always predicts the share of replaced tokens."""
    shares = metrics["replaced"], 1 - metrics["replaced"]
    return -sum(share * math.log(share) for share in shares if share)


def _majority(metrics: Mapping[str, float]) -> float:
    """Accuracy of always predicting the more frequent class."""
    return max(metrics["replaced"], 1 - metrics["replaced"])


class Objective(pretrainer.Objective):
    """Classifies every token of the text as original or replaced.

    A sample that equals the original token is labelled original.

    Attributes:
      weight: Share in the total loss; 50 in section 3.1.
    """

    weight: Weight = 50.0

    follows = ("generator",)  # one of these precedes it in a config
    metrics = (("accuracy", "max"), ("found", "max"), ("replaced", ""))
    summary = (
        SummaryMetric("loss", "RTD loss", "nats", _entropy, "class prior"),
        SummaryMetric("accuracy", "RTD accuracy", "%", _majority, "class prior"),
        SummaryMetric("found", "replaced found", "%"),
        SummaryMetric("replaced", "replaced tokens", "%"),
    )

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        if "original_ids" not in batch:
            raise UserError(
                "objective rtd requires replaced tokens; put generator before it in "
                "config.objectives"
            )
        return batch

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Binary cross entropy over all tokens; metrics are the shares replaced and detected."""
        logits_BL = self.logits(encoder, encoded.sequence)
        replaced = batch["input_ids"] != batch["original_ids"]
        example_weight = batch.get("example_weight", jnp.ones(len(replaced)))
        weights = masks.padding_mask(batch["attention_mask"]) * example_weight[:, None]
        weight_sum, of_replaced = weights.sum(), weights * replaced
        metrics = {
            "accuracy": (jnp.sum(weights * ((logits_BL > 0) == replaced)), weight_sum),
            "replaced": (of_replaced.sum(), weight_sum),
            "found": (jnp.sum(of_replaced * (logits_BL > 0)), of_replaced.sum()),
        }
        return losses.sigmoid_cross_entropy(logits_BL, replaced, weights), weight_sum, metrics

    @nn.compact
    def logits(self, encoder: Encoder, sequence: Float[Array, "B L D"]) -> Float[Array, "B L"]:
        """Logits of "replaced"."""
        dense = Dense(
            (encoder.hidden_size,),
            ("embed", None),
            initializer_range=hidden_stddev(encoder),
            precision=get_precision(encoder.precision),
            name="dense",
        )
        hidden = activation(encoder.hidden_act)(dense(sequence))
        return Classifier(1, output_stddev(encoder), name="classifier")(hidden)[..., 0]
