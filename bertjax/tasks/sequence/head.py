"""Classification or regression head for one or two texts: linear on the pooled output.

`SequenceHead` is the computation, which the heads of `tasks/glue`, of this task and, as
`ClassifierHead`, of other benchmarks share; they differ in the source of the classes.
"""

from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bertjax import pretrainer
from bertjax.constraints import AnyText, DropoutRate, NonNegativeFloat, OneOf, Weight
from bertjax.interfaces import Batch
from bertjax.layers import heads as layers_heads
from bertjax.layers import losses
from bertjax.layers.dense import ActivationName
from bertjax.layers.dropout import Dropout
from bertjax.layers.heads import TaskClassifier
from bertjax.layers.width_scaling import output_stddev
from bertjax.metrics.sequences import METRICS, MULTI_LABEL, PROBLEM_TYPES, REGRESSION, SINGLE_LABEL
from bertjax.pretrainer import Encoded, Encoder, Sum


class SequenceHead(pretrainer.Task, kw_only=True):
    """Sequence classification or regression (Devlin et al. 2019, section 4.1 and appendix A.3).

    Dropout on the pooled output, then a linear layer with one output per class, or one for a
    regression. The head adds a pooler to an encoder without one (`layers/heads.py`). A subclass has
    `problem_type`, one of `PROBLEM_TYPES`, and `num_outputs`, the number of classes or 1.

    Attributes:
      classifier_dropout: Dropout rate of the pooled output.
      pooler_act: Activation of the added pooler, if the encoder has none: tanh as in RoBERTa;
        transformers uses relu for DistilBERT and gelu for ELECTRA.
      mix_layer_norm: Whether layers are normalised before a scalar mix (`layers/heads.py`).
      weight: Weight in the total loss.
    """

    classifier_dropout: DropoutRate = 0.1
    pooler_act: ActivationName = "tanh"
    mix_layer_norm: bool = False
    weight: Weight = 1.0

    metrics = (("accuracy", "max"), ("absolute_error", "min"))  # of classes, of a score
    reads_pooled = True
    pipeline_tag = "text-classification"

    @nn.nowrap
    def label_weights(self) -> tuple[float, ...]:
        """Returns the weight of each class in the loss; none if all are 1."""
        return ()

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the cross entropy of the classes, in nats, or the squared error of the score.

        With weights of classes, the weight of an example is that of its class, so that the mean is
        a weighted mean. With several labels per example the binary cross entropies are averaged
        over the classes, and a weight multiplies the term of a label that the example has.
        """
        logits_BC, weights = self.scores(encoder, encoded, batch, train=train)
        labels = batch["labels"]
        weight_sum = weights.sum()
        if self.problem_type == REGRESSION:
            error = logits_BC[:, 0] - labels
            absolute = (jnp.sum(weights * jnp.abs(error)), weight_sum)
            return jnp.sum(weights * error**2), weight_sum, {"absolute_error": absolute}
        if self.problem_type == MULTI_LABEL:
            return self._multi_label_loss(logits_BC, labels > 0, weights)
        # In a mixture, labels of other tasks may be out of range; their weight is 0.
        labels = labels.astype(jnp.int32).clip(0, logits_BC.shape[-1] - 1)
        accuracy = (losses.count_correct(logits_BC, labels, weights), weight_sum)
        if self.label_weights():
            weights = weights * jnp.asarray(self.label_weights())[labels]
            weight_sum = weights.sum()
        return losses.cross_entropy(logits_BC, labels, weights), weight_sum, {"accuracy": accuracy}

    def _multi_label_loss(
        self,
        logits: Float[Array, "B C"],
        labels: Bool[Array, "B C"],
        weights: Float[Array, " B"],
    ) -> tuple[Array, Array, dict[str, Sum]]:
        count = logits.shape[-1]
        positive = jnp.asarray(self.label_weights() or (1.0,) * count)
        weights_BC = weights[:, None] * jnp.where(labels, positive, 1.0) / count
        loss_sum = losses.sigmoid_cross_entropy(logits, labels, weights_BC)
        is_exact = ((logits >= 0) == labels).all(axis=-1)
        return loss_sum, weights.sum(), {"accuracy": (jnp.sum(weights * is_exact), weights.sum())}

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B C"], Float[Array, " B"]]:
        """Returns the logits of the classes, or one score, and the weight of each example."""
        features = self.features(encoder, encoded, batch)
        features = Dropout(self.classifier_dropout)(features, train=train)
        classifier = TaskClassifier(self.num_outputs, output_stddev(encoder), name="classifier")
        logits_BC = classifier(features)
        return logits_BC, self.example_weights(batch, len(logits_BC))

    @nn.compact
    def features(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, "B F"]:
        """Returns the input of the classifier: the pooled output."""
        return layers_heads.pooled_output(
            encoder,
            encoded,
            batch,
            pooler_act=self.pooler_act,
            mix_layer_norm=self.mix_layer_norm,
        )

    @nn.nowrap
    def example_weights(self, batch: Batch, size: int) -> Float[Array, " B"]:
        """Returns the weight of each example, 0 for those of padding."""
        return batch.get("example_weight", jnp.ones(size))


class ClassifierHead(SequenceHead, kw_only=True):
    """Head of a benchmark whose run writes the names of its classes; it predicts logits.

    Attributes:
      labels: Names of the classes; written by the run.
      texts: Names of the one or two texts in predictions; written by the run.
    """

    labels: tuple[AnyText, ...] = ()
    texts: tuple[AnyText, ...] = ()

    fields_from_data = ("labels", "texts")
    exchanged_as = "glue"
    problem_type = SINGLE_LABEL

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, "B C"]:
        """Returns the logits of the classes, in float32."""
        return self.scores(encoder, encoded, batch, train=False)[0].astype(jnp.float32)


class ClassWeight:
    """Constraint on an element of `class_weights`: "balanced" or "LABEL=WEIGHT"."""

    def violation(self, value: Any) -> str | None:
        if value == "balanced":
            return None
        label, _, weight = value.rpartition("=") if isinstance(value, str) else ("", "", "")
        try:
            is_valid = bool(label) and np.isfinite(float(weight)) and float(weight) > 0
        except ValueError:
            is_valid = False
        return None if is_valid else "expected 'balanced' or 'LABEL=WEIGHT' with a weight > 0"


class Task(SequenceHead, kw_only=True):
    """Head for the rows of a table, whose classes follow from the data.

    Attributes:
      problem_type: single_label_classification, multi_label_classification or regression, as in
        transformers; "" infers it from the labels of the training examples.
      eval_metrics: Names of `metrics/sequences.py`, of which the first chooses epochs and
        seeds; empty for those of the problem type.
      class_weights: ("balanced",) for weights in inverse proportion to the number of examples; or
        ("LABEL=WEIGHT", ...), 1 for the others.
      labels: Names of the classes; written by the run.
      texts: Columns of the one or two texts; written by the run.
      loss_weights: Weight of each class in the loss, of `class_weights`; written by the run.
    """

    problem_type: Annotated[str, OneOf(("", *PROBLEM_TYPES))] = ""
    eval_metrics: tuple[Annotated[str, OneOf(METRICS)], ...] = ()
    class_weights: tuple[Annotated[str, ClassWeight()], ...] = ()
    labels: tuple[AnyText, ...] = ()
    texts: tuple[AnyText, ...] = ()
    loss_weights: tuple[NonNegativeFloat, ...] = ()

    fields_from_data = ("labels", "texts", "loss_weights")
    exchanged_as = "glue"

    @property
    def num_outputs(self) -> int:
        return 1 if self.problem_type == REGRESSION else len(self.labels)

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (len(self.labels),) if self.problem_type == MULTI_LABEL else ()

    @nn.nowrap
    def label_weights(self) -> tuple[float, ...]:
        return self.loss_weights

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, "B C"]:
        """Returns the logits of the classes, or one score, in float32."""
        return self.scores(encoder, encoded, batch, train=False)[0].astype(jnp.float32)
