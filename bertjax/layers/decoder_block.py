"""A block of a decoder: attention to what was said before, to the source, and a feed-forward net.

It works on whole sequences, for training, or token by token with what it kept of the tokens before.
"""

from typing import NamedTuple

import flax.linen as nn
from jax import lax
from jaxtyping import Array, Float, Int

from bertjax.layers.cross_attention import CrossAttention, KeysValues
from bertjax.layers.dropout import Dropout
from bertjax.layers.masks import Mask
from bertjax.layers.norm import LayerNorm


class Source(NamedTuple):
    """What all blocks of a decoder read.

    Attributes:
      visible: Which of its own tokens a token sees.
      memory: What the encoder made of the source.
      mask: Which tokens of the source are there.
    """

    visible: Mask
    memory: Float[Array, "B M D"]
    mask: Mask


class Kept(NamedTuple):
    """What a block keeps from token to token: of its own past, and of the source."""

    past: KeysValues
    source: KeysValues


class DecoderBlock(nn.Module):
    """LayerNorm after each of three residual sums (Vaswani et al. 2017, section 3.1).

    Attributes:
      attention: To the own past.
      cross_attention: To the source.
      feed_forward: The feed-forward net.
      dropout_rate: Dropout of the three outputs before they are added.
      layer_norm_eps: Epsilon of the three LayerNorms.
    """

    attention: CrossAttention
    cross_attention: CrossAttention
    feed_forward: nn.Module
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-6

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], source: Source, *, train: bool
    ) -> Float[Array, "B T D"]:
        """All tokens at once."""
        kept = Kept(self.attention.read(x), self.read(source.memory))
        return self._answer(x, kept, source.visible, source.mask, train=train)

    def read(self, memory: Float[Array, "B M D"]) -> KeysValues:
        """What is kept of the source."""
        return self.cross_attention.read(memory)

    @nn.compact
    def step(
        self,
        x: Float[Array, "B 1 D"],
        kept: Kept,
        at: Int[Array, ""],
        visible: Mask,
        mask: Mask,
    ) -> tuple[Float[Array, "B 1 D"], KeysValues]:
        """The next token, which is kept at place `at`; returns the past with it."""
        new = self.attention.read(x)
        past = KeysValues(
            *(
                lax.dynamic_update_slice_in_dim(old, one.astype(old.dtype), at, axis=1)
                for old, one in zip(kept.past, new, strict=True)
            )
        )
        return self._answer(x, Kept(past, kept.source), visible, mask, train=False), past

    def _answer(self, x, kept, visible, mask, *, train):
        dropout = Dropout(self.dropout_rate)

        def added(x, change, name):
            norm = LayerNorm(self.layer_norm_eps, name=name)
            return norm(x + dropout(change, train=train))

        x = added(x, self.attention(x, kept.past, visible, train=train), "attention_norm")
        found = self.cross_attention(x, kept.source, mask, train=train)
        x = added(x, found, "cross_attention_norm")
        return added(x, self.feed_forward(x), "feed_forward_norm")
