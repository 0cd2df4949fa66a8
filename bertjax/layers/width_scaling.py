"""Maximal update parametrisation (muP): initial values and multipliers that depend on the width.

The learning rate that is best for a narrow base model is best for a model m times as wide too
(Yang et al. 2022, "Tensor Programs V"), if its widths are in the same proportions and

    parameters                                initial stddev  Adam's update  output
    embeddings, biases, scales of LayerNorm   1               1              1
    kernels to a hidden width                 1 / sqrt(m)     1 / m          1
    kernels to classes                        1 / m           1 / m          1
    word embeddings as the output layer       1               1              1 / m

relative to the standard parametrisation, and attention scores are q k / K in place of q k / sqrt(K)
for heads of width K (definition 4.1). Kernels are those of table 3, the tied output layer is that
of table 8, since embeddings are inputs as well. With m = 1 nothing changes. A model with the fields
`mup_base_width` and `mup_base_heads` calls the functions below; heads of objectives and tasks read
the fields of their encoder. `train/optimizer.py` scales the updates.
"""

import math
from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Float

from bertjax.constraints import Relation
from bertjax.pretrainer import Encoder

BASE_HEADS = Relation(
    ("mup_base_width", "mup_base_heads"),
    lambda width, heads: not heads or (width > 0 and width % heads == 0),
    "mup_base_width to divide into mup_base_heads equal heads",
    "set mup_base_heads to 0 if the heads of the base model have the same width",
)


def mup_width_ratio(fields: Mapping[str, Any]) -> float:
    """The ratio m of a model with these fields; 0 for the standard parametrisation."""
    base = fields.get("mup_base_width", 0)
    return fields["hidden_size"] / base if base else 0.0


def width_ratio(encoder: Encoder) -> float:
    """m, the width relative to the base model's; 1 for the standard parametrisation."""
    base = getattr(encoder, "mup_base_width", 0)
    return encoder.hidden_size / base if base else 1.0


def hidden_stddev(encoder: Encoder) -> float:
    """Initial standard deviation of a kernel whose output grows with the width."""
    return encoder.initializer_range / math.sqrt(width_ratio(encoder))


def output_stddev(encoder: Encoder) -> float:
    """Initial standard deviation of a kernel whose output does not, as that of a classifier."""
    return encoder.initializer_range / width_ratio(encoder)


def query_scale(encoder: Encoder) -> float:
    """Factor of the queries: the root of the base model's head width over the own one."""
    base_heads = getattr(encoder, "mup_base_heads", 0)
    if not base_heads:
        return 1.0
    # Widths of heads are K = D / H.
    return math.sqrt(encoder.num_attention_heads / base_heads / width_ratio(encoder))


def scale_output(encoder: Encoder, hidden: Float[Array, "*lead E"]) -> Float[Array, "*lead E"]:
    """Divides the input of the tied output layer by m."""
    ratio = width_ratio(encoder)
    return hidden if ratio == 1 else hidden / ratio
