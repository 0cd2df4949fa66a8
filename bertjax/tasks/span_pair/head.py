"""Head of two marked spans: a linear layer on the pooled output and a vector of each span."""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertjax.constraints import OneOf
from bertjax.interfaces import Batch
from bertjax.layers.heads import TaskClassifier
from bertjax.layers.width_scaling import output_stddev
from bertjax.pretrainer import Encoded, Encoder
from bertjax.tasks.sequence.head import ClassifierHead
from bertjax.tasks.superglue.table import names_of


class Task(ClassifierHead, kw_only=True):
    """Classification of two spans (Wang et al. 2019, SuperGLUE, section 4.1: WiC and WSC).

    A span is the weighted mean of its tokens in the last layer, with attention weights from one
    trained vector (Lee et al. 2017, section 4, the head words of spans). The classifier reads the
    pooled output and both spans. In the paper WiC takes the vector of the word instead, and WSC
    reads the spans alone.

    Attributes:
      dataset: Name of the task in `tasks/superglue/table.py`.
    """

    dataset: Annotated[str, OneOf(names_of("span_pair"))]
    exchanged_as = ""
    pipeline_tag = ""  # its examples have spans in addition to texts

    @nn.compact
    def features(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, "B F"]:
        """Returns the input of the classifier: the pooled output, and the vectors of both spans."""
        pooled, sequence = super().features(encoder, encoded, batch), encoded.sequence
        span_attention = TaskClassifier(1, output_stddev(encoder), name="span_attention")
        attention_BL = span_attention(sequence)[..., 0]
        spans = [
            attend_to_span(sequence, attention_BL, (batch["span_ids"] & bit) > 0) for bit in (1, 2)
        ]
        return jnp.concatenate([pooled.astype(jnp.float32), *spans], axis=-1)


def attend_to_span(
    sequence: Float[Array, "B L D"], scores: Float[Array, "B L"], span: Bool[Array, "B L"]
) -> Float[Array, "B D"]:
    """Returns the mean of the tokens of a span, weighted by the softmax of their scores."""
    # A finite minimum, so that a row without a span has no NaN.
    weights = jax.nn.softmax(jnp.where(span, scores, jnp.finfo(scores.dtype).min), axis=-1)
    return jnp.einsum("bl,bld->bd", weights, sequence.astype(jnp.float32))
