"""Teacher forcing: the decoder reads the target so far and predicts its next token."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses
from bertjax.pretrainer import Encoded, Encoder, Sum

LENGTHS = 16
"""Lengths of corrupted sequences are multiples of this, so that they divide over a mesh."""

_SOURCE_KEYS = ("segment_ids", "position_ids", "word_starts", "memory_mask", "is_continuation")
"""Batch keys per token of the text, which a corrupted source does not have."""


def round_up(length: int) -> int:
    """The next multiple of `LENGTHS`."""
    return -(-length // LENGTHS) * LENGTHS


def shift_right(target_ids: Int[Array, "B T"], start_id: int) -> Int[Array, "B T"]:
    """Decoder inputs: the targets shifted right by one, after a start token."""
    return jnp.pad(target_ids, ((0, 0), (1, 0)), constant_values=start_id)[:, :-1]


def replace_source(
    batch: Batch,
    input_ids: Int[Array, "B L"],
    attention_mask: Bool[Array, "B L"],
    target_ids: Int[Array, "B T"],
    target_mask: Bool[Array, "B T"],
    start_id: int,
) -> Batch:
    """Replaces the source of a batch by a corrupted one, and adds the targets to predict."""
    unchanged = {name: rows for name, rows in batch.items() if name not in _SOURCE_KEYS}
    return {
        **unchanged,
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "decoder_input_ids": shift_right(target_ids, start_id),
        "target_ids": target_ids,
        "target_mask": target_mask,
    }


METRICS = (("accuracy", "max"), ("text_loss", "min"))
"""Metrics of `loss`, and the better direction of each."""


def loss(
    encoder: Encoder,
    encoded: Encoded,
    batch: Batch,
    *,
    text: Bool[Array, "B T"],
    label_smoothing: float = 0.0,
) -> tuple[Array, Array, dict[str, Sum]]:
    """Cross entropy of the targets, computed for a few positions at a time.

    Args:
      encoder: Computes logits.
      encoded: Its output for the batch.
      batch: A batch with targets.
      text: Which targets are tokens of the text: `text_loss` is their cross entropy in nats, for
        comparison with a unigram baseline.
      label_smoothing: Share of each label that is spread over the vocabulary (Szegedy et al. 2016,
        section 7).
    """
    if encoded.decoded is None:
        raise UserError(
            "an objective with targets requires a model with a decoder; set "
            "--config.model.name=transformer"
        )
    labels, mask = batch["target_ids"], batch["target_mask"]
    scores = losses.chunked_softmax(encoder, _scores, encoded.decoded, labels, 0)
    weights = mask * batch.get("example_weight", jnp.ones(len(labels)))[:, None]
    weight_sum, text_weights = weights.sum(), weights * text
    metrics = {
        "accuracy": (jnp.sum(weights * scores.hits), weight_sum),
        "text_loss": (-jnp.sum(text_weights * scores.log_probs), text_weights.sum()),
    }
    log_probs = (1 - label_smoothing) * scores.log_probs + label_smoothing * scores.mean
    return -jnp.sum(weights * log_probs), weight_sum, metrics


def _scores(encoder: Encoder, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
    return encoder.attend(hidden).astype(jnp.float32)


def is_text(target_ids: Int[Array, "B T"], special_ids: tuple[int, ...]) -> Bool[Array, "B T"]:
    """Which targets are not special tokens."""
    return ~jnp.isin(target_ids, jnp.asarray(special_ids, target_ids.dtype))


def effective_smoothing(label_smoothing: float, *, train: bool) -> float:
    """Returns the label smoothing: 0 in evaluation, which measures plain cross entropy.

    Raises:
      UserError: `label_smoothing` is out of range.
    """
    if not 0 <= label_smoothing < 1:
        raise UserError(f"label_smoothing: got {label_smoothing}, expected >= 0 and < 1")
    return label_smoothing if train else 0.0


def length_mask(lengths: Int[Array, " B"], length: int) -> Bool[Array, "B L"]:
    """Padding mask of rows with the given numbers of tokens."""
    return jnp.arange(length) < lengths[:, None]
