"""Text infilling (Lewis et al. 2020, section 2.2): BART reconstructs a text with masked spans."""

import jax.numpy as jnp
from jaxtyping import Array

from bertjax import pretrainer
from bertjax.constraints import PositiveFloat, PositiveShare, TokenId, Weight
from bertjax.interfaces import Batch
from bertjax.layers import spans, teacher_forcing
from bertjax.pretrainer import Encoded, Encoder, Sum


class Objective(pretrainer.Objective):
    """Replaces each span, also an empty one, by one [MASK]; the target is the whole text.

    Spans are sampled inside the jitted step, anew in every step.

    Attributes:
      mask_id: The [MASK] token.
      pad_id: Padding token.
      sep_id: Start token of the decoder, as in the published code.
      special_ids: Tokens that are not part of the text.
      weight: Share in the total loss.
      masked_share: Share of the text that is in spans.
      mean_span_length: Mean of the Poisson distribution of span lengths.
    """

    mask_id: TokenId
    pad_id: TokenId
    sep_id: TokenId
    special_ids: tuple[TokenId, ...]
    weight: Weight = 1.0
    masked_share: PositiveShare = 0.3
    mean_span_length: PositiveFloat = 3.0

    rewrites_input = True
    predicts_tokens = True
    metrics = teacher_forcing.METRICS
    summary = pretrainer.token_summary("text", "text_loss")

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Masks spans; a batch with targets is returned unchanged."""
        if "target_ids" in batch:
            return batch
        ids, attention_mask = batch["input_ids"], batch["attention_mask"]
        shares = {"share": self.masked_share, "mean": self.mean_span_length}
        text = spans.find_text(ids, attention_mask, self.special_ids)
        masked_spans = spans.poisson_spans(batch["example_key"], text, ids.shape[1], **shares)
        masks = jnp.full(masked_spans.begin.shape, self.mask_id, ids.dtype)
        source = spans.replace_spans(
            ids, attention_mask, masked_spans, masks, ids.shape[1], self.pad_id
        )
        return teacher_forcing.replace_source(batch, *source, ids, attention_mask, self.sep_id)

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the whole text."""
        text = teacher_forcing.is_text(batch["target_ids"], self.special_ids)
        return teacher_forcing.loss(encoder, encoded, batch, text=text)
