"""Permutation language model (Yang et al. 2019, sections 2.2 and 2.3): random orders."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax import pretrainer
from bertjax.constraints import NonNegativeInt, Number, PositiveInt, TokenId, Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses, masking, memory
from bertjax.layers.dense import add_bias
from bertjax.layers.masking import random_word_starts
from bertjax.pretrainer import Encoded, Encoder, RandomRows, Sum

AtLeastOne = Annotated[float, Number(1.0)]


class Objective(pretrainer.Objective):
    """Predicts some tokens, each from those that are not predicted and those predicted before it.

    No token is replaced by [MASK]: a factorisation order is sampled inside the jitted step, anew in
    every step, and masks the attention of a model with two streams.

    Attributes:
      special_ids: Tokens that are never predicted.
      weight: Share in the total loss.
      partial_prediction: K: one of K tokens is predicted, and the context of a span is K times as
        long as the span.
      max_predictions_per_seq: P; 0 for the sequence length over K, rounded up.
      longest_span: Length of the longest span in words.
      whole_word: Whether spans consist of whole words, as published, instead of tokens.
    """

    special_ids: tuple[TokenId, ...]
    weight: Weight = 1.0
    partial_prediction: AtLeastOne = 6.0
    max_predictions_per_seq: NonNegativeInt = 0
    longest_span: PositiveInt = 5
    whole_word: bool = True

    rewrites_input = True  # chooses the predictions, as only one objective of a run may
    predicts_tokens = True
    metrics = (("accuracy", "max"),)
    pipeline_tag = "text-generation"
    summary = pretrainer.token_summary("PLM")

    @staticmethod
    def batch_keys(fields: Mapping[str, Any]) -> Mapping[str, RandomRows]:
        return {"word_starts": random_word_starts} if fields["whole_word"] else {}

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Samples targets and their order; a batch with an order is returned unchanged."""
        if "prediction_order" in batch:
            return batch
        input_ids, attention_mask = batch["input_ids"], batch["attention_mask"]
        special = jnp.isin(input_ids, jnp.asarray(self.special_ids, input_ids.dtype))
        choosing, ordering = jax.vmap(jax.random.split, out_axes=1)(batch["example_key"])
        positions, weights = self._choose(choosing, batch, attention_mask & ~special)
        example_weight = batch.get("example_weight", jnp.ones(len(input_ids)))
        return {
            **batch,
            "prediction_order": memory.sample_order(
                ordering, positions, weights, attention_mask & special
            ),
            "mlm_positions": positions,
            "mlm_labels": jnp.take_along_axis(input_ids, positions, axis=1),
            "mlm_weights": weights * example_weight[:, None],
        }

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the predicted tokens; logits are computed for these alone."""
        if encoded.queries is None:
            raise UserError(
                "objective permutation_lm requires a model with a query stream; set "
                "--config.model.name=xlnet"
            )
        logits_BPV = self.logits(encoder, encoded.queries)
        labels, weights = batch["mlm_labels"], batch["mlm_weights"]
        weight_sum = weights.sum()
        accuracy = (losses.count_correct(logits_BPV, labels, weights), weight_sum)
        return losses.cross_entropy(logits_BPV, labels, weights), weight_sum, {"accuracy": accuracy}

    @nn.compact
    def logits(self, encoder: Encoder, hidden: Float[Array, "B P D"]) -> Float[Array, "B P V"]:
        """Logits over the vocabulary."""
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        bias = self.param("bias", zeros, (encoder.vocab_size,))
        return add_bias(encoder.attend(hidden).astype(jnp.float32), bias)

    def _choose(self, keys: Array, batch: Batch, maskable: Array) -> tuple[Array, Array]:
        length, share = maskable.shape[1], 1 / self.partial_prediction
        limit = min(self.max_predictions_per_seq or math.ceil(share * length), length)
        if self.whole_word and "word_starts" not in batch:
            raise UserError("whole_word=True requires word_starts in the batch")
        starts = batch["word_starts"] if self.whole_word else jnp.ones_like(maskable)
        return memory.choose_spans(
            keys,
            maskable,
            starts,
            masking.prediction_budget(maskable, share, limit),
            limit,
            context=self.partial_prediction,
            max_length=self.longest_span,
        )
