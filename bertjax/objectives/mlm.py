"""Masked language model (Devlin et al. 2019, section 3.1): predict masked tokens."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax import pretrainer
from bertjax.constraints import (
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveInt,
    PositiveShare,
    Relation,
    Seed,
    Share,
    ShareBelowOne,
    TokenId,
    Weight,
    check_value,
)
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses, masks
from bertjax.layers import masking as layers_masking
from bertjax.layers.dense import HeadActivationName, add_bias, get_precision, truncated_normal
from bertjax.layers.embeddings import Embedding
from bertjax.layers.heads import prediction_transform
from bertjax.layers.masking import random_word_starts
from bertjax.pretrainer import Encoded, Encoder, RandomRows, Sum

MASKING = {
    "token": None,
    "word": layers_masking.choose_words,
    "ngram": layers_masking.choose_ngrams,
    "span": layers_masking.choose_spans,
}
"""Functions that choose groups of tokens, by the name of the masking."""

MaskingName = Annotated[str, OneOf(MASKING)]

SHARES_OF_MASKED = Relation(
    ("mask_share", "random_share"),
    lambda mask, random: mask + random <= 1 + 1e-9,
    "mask_share + random_share <= 1",
    "lower one of them",
)


class Objective(pretrainer.Objective):
    """Masks tokens inside the jitted step, anew in every step, and predicts them.

    Attributes:
      mask_id: The [MASK] token.
      special_ids: Tokens that are never predicted and never sampled as a replacement.
      vocab_size: V, from which random replacements are sampled.
      seed: Seed of static masks.
      weight: Share in the total loss.
      masked_lm_prob: Share of the tokens to predict.
      max_predictions_per_seq: P; 0 for `masked_lm_prob` of the sequence length, rounded up.
      mask_share: Share of the chosen tokens that become [MASK].
      random_share: Share of the chosen tokens that become a random token; the rest is unchanged.
      masking: Unit of masking: "token"; "word", BERT's whole words; "ngram", ALBERT's 1 to 3 words;
        "span", SpanBERT's up to 10 words, which are replaced alike.
      static: Whether an example has one mask in all epochs, as if masked in preprocessing, instead
        of a new one in each step (compared by RoBERTa, section 4.1).
      hidden_act: Activation of the head; "" for the encoder's. Heads of RoBERTa and of ELECTRA's
        generator are always "gelu" in transformers.
      label_smoothing: Share of each label that is spread over the vocabulary; in training alone.
      z_loss: Factor of the squared logarithm of the softmax's normalizer; in training alone.
    """

    mask_id: TokenId
    special_ids: tuple[TokenId, ...]
    vocab_size: PositiveInt
    seed: Seed = 0
    weight: Weight = 1.0
    masked_lm_prob: PositiveShare = 0.15
    max_predictions_per_seq: NonNegativeInt = 0
    mask_share: Share = 0.8
    random_share: Share = 0.1
    masking: MaskingName = "token"
    static: bool = False
    hidden_act: HeadActivationName = ""
    label_smoothing: ShareBelowOne = 0.0
    z_loss: NonNegativeFloat = 0.0

    relations = (SHARES_OF_MASKED,)
    rewrites_input = True
    predicts_tokens = True
    metrics = (("accuracy", "max"),)
    pipeline_tag = "fill-mask"
    summary = pretrainer.token_summary("MLM")

    @staticmethod
    def batch_keys(fields: Mapping[str, Any]) -> Mapping[str, RandomRows]:
        return {} if fields["masking"] == "token" else {"word_starts": random_word_starts}

    @nn.compact
    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the masked tokens; logits are computed for these alone.

        Evaluation has neither label smoothing nor z-loss: its loss has a perplexity.
        """
        logits_BPV, weights = self.scores(encoder, encoded, batch, train=train)
        labels = batch["mlm_labels"]
        weight_sum = weights.sum()
        accuracy = (losses.count_correct(logits_BPV, labels, weights), weight_sum)
        loss_sum = losses.cross_entropy(
            logits_BPV,
            labels,
            weights,
            label_smoothing=self.label_smoothing if train else 0.0,
            z_loss=self.z_loss if train else 0.0,
        )
        return loss_sum, weight_sum, {"accuracy": accuracy}

    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B P V"], Float[Array, "B P"]]:
        """Logits and weight of each prediction."""
        logits_BPV = self.logits(encoder, encoded.sequence, batch["mlm_positions"])
        return logits_BPV, batch["mlm_weights"]

    def logits(
        self, encoder: Encoder, sequence: Float[Array, "B L D"], positions: Int[Array, "B P"]
    ) -> Float[Array, "B P V"]:
        """Logits over the vocabulary at the given positions."""
        hidden_BPE, bias = self.head(encoder, sequence, positions)
        return output_logits(self.output_layer(encoder), hidden_BPE, bias)

    @nn.compact
    def head(
        self, encoder: Encoder, sequence: Float[Array, "B L D"], positions: Int[Array, "B P"]
    ) -> tuple[Float[Array, "B P E"], Float[Array, " V"]]:
        """Inputs of the output layer at the given positions, and its bias."""
        hidden = jnp.take_along_axis(sequence, positions[..., None], axis=1)
        if getattr(encoder, "head_transform", True):
            transform = prediction_transform(encoder, "transform", hidden_act=self.hidden_act)
            hidden = transform(hidden)
        if not getattr(encoder, "decoder_bias", True):
            return hidden, jnp.zeros(encoder.vocab_size)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        return hidden, self.param("bias", zeros, (encoder.vocab_size,))

    @nn.compact
    def output_layer(self, encoder: Encoder) -> Encoder | Embedding:
        """The module whose `attend` is the output layer: the encoder, or an untied table."""
        if getattr(encoder, "tie_word_embeddings", True):
            return encoder
        return Embedding(
            encoder.vocab_size,
            encoder.embedding_size,
            ("vocab", "embed"),
            truncated_normal(encoder.initializer_range),
            get_precision(encoder.precision),
            name="decoder",
        )

    def token_logits(self, encoder: Encoder, encoded: Encoded) -> Float[Array, "B L V"]:
        """Logits over the vocabulary at every position, for inspection of a trained model."""
        batch_size, length = encoded.sequence.shape[:2]
        positions = jnp.broadcast_to(jnp.arange(length), (batch_size, length))
        return self.logits(encoder, encoded.sequence, positions)

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Chooses and masks tokens; a batch with predictions is returned unchanged."""
        if "mlm_positions" in batch:
            return batch
        if getattr(encoder, "is_causal", False):
            raise UserError(
                f"objective mlm: got a causal model ({type(encoder).__module__.rpartition('.')[2]})"
                ", whose masks do not see the tokens after them, expected a bidirectional one; "
                "choose another model, or the objective causal_lm"
            )
        input_ids = batch["input_ids"]
        position_keys, mask_keys = jax.vmap(jax.random.split, out_axes=1)(self._keys(batch))
        positions, weights, *spans = self._choose(position_keys, batch)
        hidden = layers_masking.mask_tokens(
            mask_keys,
            input_ids,
            positions,
            weights,
            mask_id=self.mask_id,
            vocab_size=self.vocab_size,
            special_ids=self.special_ids,
            groups=spans[0][..., 0] if spans else None,
            mask_share=self.mask_share,
            random_share=self.random_share,
        )
        example_weight = batch.get("example_weight", jnp.ones(len(input_ids)))
        return {
            **batch,
            **({"mlm_spans": spans[0]} if spans else {}),
            "input_ids": hidden,
            "mlm_positions": positions,
            "mlm_labels": jnp.take_along_axis(input_ids, positions, axis=1),
            "mlm_weights": weights * example_weight[:, None],
        }

    def _keys(self, batch: Batch) -> Array:
        if not self.static:
            return batch["example_key"]
        return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(self.seed), i))(
            batch["example_id"]
        )

    def _choose(self, keys: Array, batch: Batch) -> tuple[Array, ...]:
        """Positions, weights and the bounds of spans."""
        check_value(MaskingName, self.masking, "masking")
        maskable = self.maskable(batch)
        limit = self._limit(maskable.shape[1])
        budget = self._budget(batch, maskable, limit)
        if self.masking == "token":
            return layers_masking.choose_tokens(keys, maskable, budget, limit)
        if "word_starts" not in batch:
            raise UserError(f"masking={self.masking!r} requires word_starts in the batch")
        return MASKING[self.masking](keys, maskable, batch["word_starts"], budget, limit)

    def _limit(self, length: int) -> int:
        """P, the number of predictions of a row."""
        limit = self.max_predictions_per_seq or math.ceil(self.masked_lm_prob * length)
        return min(limit, length)

    def _budget(self, batch: Batch, maskable: Bool[Array, "B L"], limit: int) -> Int[Array, " B"]:
        """Number of tokens to predict in each row."""
        return layers_masking.prediction_budget(maskable, self.masked_lm_prob, limit)

    def maskable(self, batch: Batch) -> Bool[Array, "B L"]:
        """Which tokens are neither padding nor special."""
        input_ids = batch["input_ids"]
        special = jnp.isin(input_ids, jnp.asarray(self.special_ids, input_ids.dtype))
        return masks.padding_mask(batch["attention_mask"]) & ~special


def output_logits(
    layer: Encoder | Embedding, hidden: Float[Array, "B P E"], bias: Float[Array, " V"]
) -> Float[Array, "B P V"]:
    """The output layer, mostly the tied word embeddings, and a bias."""
    return add_bias(layer.attend(hidden).astype(jnp.float32), bias)
