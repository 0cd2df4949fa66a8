"""Attention of one sequence to another, read once and asked as often as one likes.

What is read, keys and values, is also what a decoder keeps of its own past: so the layer serves for
both attentions of a decoder (Vaswani et al. 2017, section 3.2.3).
"""

from typing import NamedTuple

import flax.linen as nn
from jaxtyping import Array, Float

from bertjax.layers.attention import attend
from bertjax.layers.dense import Dense
from bertjax.layers.dropout import Dropout
from bertjax.layers.masks import Mask
from bertjax.layers.precision import Precision


class KeysValues(NamedTuple):
    """What attention reads of a sequence."""

    key: Float[Array, "*lead M H K"]
    value: Float[Array, "*lead M H K"]


class CrossAttention(nn.Module):
    """Multi-head attention whose queries come from one sequence, keys and values from another.

    Attributes:
      num_heads: H; divides the hidden width.
      dropout_rate: Dropout of the attention weights.
      initializer_range: Standard deviation of all kernels at the start.
      precision: Types of operands and results; the softmax is float32.
    """

    num_heads: int
    dropout_rate: float = 0.1
    initializer_range: float = 0.02
    precision: Precision = Precision()

    @nn.compact
    def read(self, memory: Float[Array, "B M D"]) -> KeysValues:
        """Keys and values of the sequence that is attended to."""
        return KeysValues(self._project(memory, "key"), self._project(memory, "value"))

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        memory: KeysValues,
        mask: Mask,
        *,
        train: bool,
    ) -> Float[Array, "B L D"]:
        """What the queries of `x` find."""
        query, dropout = self._project(x, "query"), Dropout(self.dropout_rate)
        context = attend(query, memory.key, memory.value, mask, dropout, train=train)
        return self._dense((x.shape[-1],), ("heads", "kv", "embed"), "output", 2)(context)

    def _project(self, x: Float[Array, "B M D"], name: str) -> Float[Array, "B M H K"]:
        features = (self.num_heads, x.shape[-1] // self.num_heads)
        return self._dense(features, ("embed", "heads", "kv"), name)(x)

    def _dense(self, features, axes, name, contracted=1):
        return Dense(
            features,
            axes,
            contracted=contracted,
            initializer_range=self.initializer_range,
            precision=self.precision,
            name=name,
        )
