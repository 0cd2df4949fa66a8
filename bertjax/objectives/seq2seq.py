"""Sequence to sequence (Vaswani et al. 2017): predict the target of a source."""

from jaxtyping import Array

from bertjax import pretrainer
from bertjax.constraints import ShareBelowOne, TokenId, Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import teacher_forcing
from bertjax.pretrainer import Encoded, Encoder, Sum


class Objective(pretrainer.Objective):
    """Teacher forcing: predicts each token of the target from the true ones before it.

    Attributes:
      pad_id: Start token of the decoder.
      special_ids: Tokens that are not part of the text.
      weight: Share in the total loss.
      label_smoothing: Share of each label that is spread over the vocabulary (section 5.4); 0 in
        evaluation.
    """

    pad_id: TokenId
    special_ids: tuple[TokenId, ...]
    weight: Weight = 1.0
    label_smoothing: ShareBelowOne = 0.1

    predicts_tokens = True
    metrics = teacher_forcing.METRICS
    summary = pretrainer.token_summary("target", "text_loss")

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        if "target_ids" not in batch:
            raise UserError(
                "objective seq2seq requires sources and targets; set --config.data.format and "
                "--config.data.text_format to source-target"
            )
        decoder_input_ids = teacher_forcing.shift_right(batch["target_ids"], self.pad_id)
        return {**batch, "decoder_input_ids": decoder_input_ids}

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the target, including its end token."""
        return teacher_forcing.loss(
            encoder,
            encoded,
            batch,
            text=teacher_forcing.is_text(batch["target_ids"], self.special_ids),
            label_smoothing=teacher_forcing.effective_smoothing(self.label_smoothing, train=train),
        )
