"""Span corruption (Raffel et al. 2020, section 3.1.4): T5 predicts the removed spans."""

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array

from bertjax import pretrainer
from bertjax.constraints import Number, OpenShare, PositiveInt, TokenId, Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import spans, teacher_forcing
from bertjax.pretrainer import Encoded, Encoder, Sum

SpanLength = Annotated[float, Number(1.0)]


class Objective(pretrainer.Objective):
    """Replaces each span of the text by a sentinel; the target is each sentinel and its span.

    Spans are sampled inside the jitted step, anew in every step. Sentinels are the last ids of the
    vocabulary, after those of the tokenizer, in descending order, as T5's `<extra_id_0>`.

    Attributes:
      pad_id: Start token of the decoder.
      sep_id: End token of a target.
      special_ids: Tokens that are not part of the text.
      vocab_size: V, including sentinels.
      weight: Share in the total loss.
      num_sentinels: Number of ids after those of the tokenizer.
      noise_density: Share of the text that is in spans.
      mean_noise_span_length: Mean length of a span in tokens.
    """

    pad_id: TokenId
    sep_id: TokenId
    special_ids: tuple[TokenId, ...]
    vocab_size: PositiveInt
    weight: Weight = 1.0
    num_sentinels: PositiveInt = 100
    noise_density: OpenShare = 0.15
    mean_noise_span_length: SpanLength = 3.0

    rewrites_input = True
    predicts_tokens = True
    metrics = teacher_forcing.METRICS
    summary = pretrainer.token_summary("span", "text_loss")

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Replaces spans by sentinels; a batch with targets is returned unchanged."""
        if "target_ids" in batch:
            return batch
        ids, attention_mask = batch["input_ids"], batch["attention_mask"]
        max_length = ids.shape[1]
        shares = {"share": self.noise_density, "mean": self.mean_noise_span_length}
        text = spans.find_text(ids, attention_mask, self.special_ids)
        masked_spans = spans.random_spans(batch["example_key"], text, max_length, **shares)
        count = masked_spans.begin.shape[1]
        self._check(count)
        sentinels = jnp.broadcast_to(
            self.vocab_size - 1 - jnp.arange(count), masked_spans.begin.shape
        )
        # Up to two special tokens of a full row are not part of the text.
        left = max_length - round(self.noise_density * (max_length - 2)) + count
        left = min(teacher_forcing.round_up(left), max_length)
        source = spans.replace_spans(
            ids, attention_mask, masked_spans, sentinels, left, self.pad_id
        )
        length = teacher_forcing.round_up(round(self.noise_density * max_length) + count + 1)
        target = spans.gather_spans(ids, masked_spans, sentinels, self.sep_id, length, self.pad_id)
        return teacher_forcing.replace_source(batch, *source, *target, self.pad_id)

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the target, including sentinels and the end token."""
        target_ids = batch["target_ids"]
        text = teacher_forcing.is_text(target_ids, self.special_ids)
        text = text & (target_ids < self.vocab_size - self.num_sentinels)
        return teacher_forcing.loss(encoder, encoded, batch, text=text)

    def _check(self, count: int) -> None:
        if count > self.num_sentinels:
            raise UserError(
                f"num_sentinels: got {self.num_sentinels}, expected at least {count}, one for each "
                "span; raise it and config.model.vocab_size by the same number, or shorten the text"
            )
