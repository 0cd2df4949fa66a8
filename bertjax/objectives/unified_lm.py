"""Unified language model (Dong et al. 2019): one encoder with four kinds of attention masks."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from bertjax import pretrainer
from bertjax.constraints import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    PositiveShare,
    Relation,
    TokenId,
    Weight,
    check_module,
)
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses, masks
from bertjax.layers.masking import random_word_starts
from bertjax.objectives import mlm
from bertjax.pretrainer import Encoded, Encoder, RandomRows, Sum

KINDS = ("bidirectional", "left_to_right", "right_to_left", "seq2seq")
NUM_SEGMENTS = 6
"""Two for bidirectional and seq2seq examples each, one for each of the other kinds."""


class Objective(pretrainer.Objective):
    """Predicts masked tokens with an attention mask of a kind that is sampled for each example.

    Kinds are bidirectional, left-to-right, right-to-left and sequence-to-sequence: bidirectional in
    the first segment, causal in the second (section 2.3). Each kind has separate segment ids, six
    in all, as in the published code.

    Attributes:
      mask_id: The [MASK] token.
      special_ids: Tokens that are never predicted and never sampled as a replacement.
      vocab_size: V, from which random replacements are sampled.
      weight: Share in the total loss.
      shares: Probability of each of `KINDS`, up to a common factor (section 2.3).
      masked_lm_prob: Share of the tokens to predict.
      max_predictions_per_seq: P; 0 for `masked_lm_prob` of the sequence length, rounded up.
      masking: Unit of masking; see `objectives/mlm.py`.
    """

    mask_id: TokenId
    special_ids: tuple[TokenId, ...]
    vocab_size: PositiveInt
    weight: Weight = 1.0
    shares: tuple[NonNegativeFloat, ...] = (1 / 3, 1 / 6, 1 / 6, 1 / 3)
    masked_lm_prob: PositiveShare = 0.15
    max_predictions_per_seq: NonNegativeInt = 0
    masking: mlm.MaskingName = "token"

    relations = (
        Relation(
            ("shares",),
            lambda shares: len(shares) == len(KINDS) and sum(shares) > 0,
            f"a share for each of {', '.join(KINDS)}, not all of them 0",
            "they count in relation to their sum",
        ),
    )
    model_relations = (
        Relation(
            ("type_vocab_size",),
            lambda kinds: kinds >= NUM_SEGMENTS,
            f"{NUM_SEGMENTS} kinds of segments or more",
            f"set --config.model.type_vocab_size={NUM_SEGMENTS}",
        ),
    )
    rewrites_input = True
    predicts_tokens = True
    metrics = (("accuracy", "max"), *((f"{kind}_loss", "min") for kind in KINDS))
    summary = pretrainer.token_summary("LM")

    @staticmethod
    def batch_keys(fields: Mapping[str, Any]) -> Mapping[str, RandomRows]:
        return {} if fields["masking"] == "token" else {"word_starts": random_word_starts}

    def setup(self):
        check_module(self)
        self.mlm = mlm.Objective(
            self.mask_id,
            self.special_ids,
            self.vocab_size,
            masked_lm_prob=self.masked_lm_prob,
            max_predictions_per_seq=self.max_predictions_per_seq,
            masking=self.masking,
        )

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Samples kinds and masks tokens; a batch with `lm_kind` is returned unchanged."""
        if "lm_kind" in batch:
            return batch
        known = getattr(encoder, "type_vocab_size", 0)
        if known < NUM_SEGMENTS:
            raise UserError(
                f"objective unified_lm: got a model with {known} segment ids, expected "
                f"{NUM_SEGMENTS}; set --config.model.type_vocab_size={NUM_SEGMENTS}"
            )
        kind_keys, mask_keys = jax.vmap(jax.random.split, out_axes=1)(batch["example_key"])
        kind = self._sample_kinds(kind_keys)
        hidden = self.mlm.prepare(encoder, {**batch, "example_key": mask_keys}, train=train)
        attention_mask, segments = batch["attention_mask"], batch["segment_ids"]
        number = jnp.asarray([0, 2, 3, 4])[kind][:, None]
        whole = (kind == 0) | (kind == 3)
        return {
            **hidden,
            "example_key": batch["example_key"],
            "lm_kind": kind,
            "attention_mask": masks.unified(kind, attention_mask, segments),
            "segment_ids": number + segments * whole[:, None],
        }

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the masked tokens; metrics for each kind."""
        logits_BPV, weights = self.mlm.scores(encoder, encoded, batch, train=train)
        labels, weight_sum = batch["mlm_labels"], weights.sum()
        metrics = {"accuracy": (losses.count_correct(logits_BPV, labels, weights), weight_sum)}
        for number, name in enumerate(KINDS):
            own = weights * (batch["lm_kind"] == number)[:, None]
            metrics[f"{name}_loss"] = losses.cross_entropy(logits_BPV, labels, own), own.sum()
        return losses.cross_entropy(logits_BPV, labels, weights), weight_sum, metrics

    def _sample_kinds(self, keys: Array) -> Int[Array, " B"]:
        limits = np.cumsum(np.asarray(self.shares) / sum(self.shares))[:-1].astype(np.float32)
        uniforms = jax.vmap(jax.random.uniform)(keys)
        return jnp.sum(uniforms[:, None] >= limits, axis=1)
