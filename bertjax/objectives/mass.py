"""Masked sequence to sequence (Song et al. 2019): MASS reconstructs a masked 50% fragment."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bertjax import pretrainer
from bertjax.constraints import PositiveInt, PositiveShare, Share, TokenId, Weight
from bertjax.interfaces import Batch
from bertjax.layers import masking, spans, teacher_forcing
from bertjax.objectives import mlm
from bertjax.pretrainer import Encoded, Encoder, Sum


class Objective(pretrainer.Objective):
    """Masks one fragment in the input of the encoder; the decoder predicts it.

    The fragment is sampled inside the jitted step, anew in every step. The decoder has the
    positions of the fragment in the text and starts with [MASK] (section 3.2).

    Attributes:
      mask_id: The [MASK] token.
      special_ids: Tokens that are not part of the text.
      vocab_size: V, from which random replacements are sampled.
      weight: Share in the total loss.
      fragment_share: Length of the fragment as a share of the text (section 4.1).
      mask_share: Share of the fragment's tokens that become [MASK].
      random_share: Share of them that become a random token; the rest is unchanged.
    """

    mask_id: TokenId
    special_ids: tuple[TokenId, ...]
    vocab_size: PositiveInt
    weight: Weight = 1.0
    fragment_share: PositiveShare = 0.5
    mask_share: Share = 0.8
    random_share: Share = 0.1

    relations = (mlm.SHARES_OF_MASKED,)
    rewrites_input = True
    predicts_tokens = True
    metrics = teacher_forcing.METRICS
    summary = pretrainer.token_summary("MASS", "text_loss")

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Masks a fragment; a batch with targets is returned unchanged."""
        if "target_ids" in batch:
            return batch
        ids, attention_mask = batch["input_ids"], batch["attention_mask"]
        max_length = ids.shape[1]
        position_keys, mask_keys = jax.vmap(jax.random.split, out_axes=1)(batch["example_key"])
        text = spans.find_text(ids, attention_mask, self.special_ids)
        size = spans.round_share(text.size, self.fragment_share, max_length)
        uniforms = jax.vmap(jax.random.uniform)(position_keys)
        begin = text.begin + (uniforms * (text.size - size + 1)).astype(jnp.int32)
        length = teacher_forcing.round_up(math.ceil(self.fragment_share * max_length))
        length = min(length, max_length)
        positions = jnp.minimum(begin[:, None] + jnp.arange(length), max_length - 1)
        target_mask = teacher_forcing.length_mask(size, length)
        masked_ids = masking.mask_tokens(
            mask_keys,
            ids,
            positions,
            target_mask.astype(jnp.float32),
            mask_id=self.mask_id,
            vocab_size=self.vocab_size,
            special_ids=self.special_ids,
            mask_share=self.mask_share,
            random_share=self.random_share,
        )
        target_ids = jnp.take_along_axis(ids, positions, axis=1)
        masked_batch = teacher_forcing.replace_source(
            batch, masked_ids, attention_mask, target_ids, target_mask, self.mask_id
        )
        return {**masked_batch, "decoder_positions": positions}

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the fragment."""
        text = teacher_forcing.is_text(batch["target_ids"], self.special_ids)
        return teacher_forcing.loss(encoder, encoded, batch, text=text)
