"""Masked next-token prediction, mixed with causal examples (Charpentier & Samuel 2024, GPT-BERT).

A masked token is predicted from the output at the token before it, as in a causal language model
(section 2): both share one head.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax import pretrainer
from bertjax.constraints import NonNegativeInt, PositiveInt, Share
from bertjax.interfaces import Batch
from bertjax.layers import losses, masks
from bertjax.objectives import mlm
from bertjax.pretrainer import Encoded, Encoder, Sum

_KIND = 1
"""Number of the stream of kinds, split from the key of an example."""


class Objective(mlm.Objective):
    """Predicts masked tokens of some examples, and all tokens of the others, which are causal.

    The kind of an example is sampled in the jitted step. Causal examples have causal attention and
    unmasked text. An example weighs as much as the number of its tokens that are masked, or would
    be if it were not causal; so the loss is the mean of the two kinds' losses in proportion to
    their numbers of examples, as in the released code, although a causal example has several times
    as many predictions. Special tokens and tokens without a preceding token are not predicted.

    The number of masked tokens may change linearly over the run. Evaluation has the final share.

    Attributes:
      causal_share: Probability that an example is causal; 0 for masked examples alone.
      final_masked_lm_prob: Share of the tokens to mask at the end of the run; `masked_lm_prob` is
        that of its beginning then; 0 for one share throughout.
      num_train_steps: Steps of the run.
      positions_at_once: Predictions of every row whose logits are computed at a time; 0 for an
        eighth of the sequence length, rounded up.
    """

    causal_share: Share = 0.0
    final_masked_lm_prob: Share = 0.0
    num_train_steps: PositiveInt = 1
    positions_at_once: NonNegativeInt = 0

    metrics = (("accuracy", "max"), ("masked_loss", "min"), ("causal_loss", "min"))
    summary = pretrainer.token_summary("MNTP")

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Samples kinds, and masks tokens; a batch with predictions is returned unchanged."""
        if "mlm_positions" in batch:
            return batch
        masked = super().prepare(encoder, batch, train=train)
        if not self.causal_share:
            return masked
        keys = jax.vmap(lambda key: jax.random.fold_in(key, _KIND))(self._keys(batch))
        return self._with_causal(
            jax.vmap(jax.random.uniform)(keys) < self.causal_share, batch, masked
        )

    def _with_causal(self, is_causal: Bool[Array, " B"], batch: Batch, masked: Batch) -> Batch:
        """Replaces some examples of a masked batch by causal ones, which predict all positions."""
        ids, predicted = batch["input_ids"], self.maskable(batch)
        length = ids.shape[1]
        weight = masked["mlm_weights"].sum(axis=1) / jnp.maximum(predicted.sum(axis=1), 1)
        causal = {
            "input_ids": ids,
            "mlm_positions": jnp.arange(length),
            "mlm_labels": ids,
            "mlm_weights": predicted * weight[:, None],
        }

        def select(name):
            rows = masked[name]
            rows = jnp.pad(rows, ((0, 0), (0, length - rows.shape[1])))
            return jnp.where(is_causal[:, None], causal[name], rows)

        return {
            **masked,
            **{name: select(name) for name in causal},
            "lm_kind": is_causal.astype(jnp.int32),
            "attention_mask": masks.bidirectional_or_causal(is_causal, batch["attention_mask"]),
        }

    @nn.compact
    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of masked tokens and of the next tokens of causal examples.

        Logits are computed for a few predictions of each row at a time. Evaluation has neither
        label smoothing nor z-loss.
        """
        weights = batch["mlm_weights"]
        hidden_BPE, bias = self.head(encoder, encoded.sequence, batch["mlm_positions"])
        size = self.positions_at_once or math.ceil(encoded.sequence.shape[1] / 8)
        layer, labels = self.output_layer(encoder), batch["mlm_labels"]
        scores = losses.chunked_softmax(layer, mlm.output_logits, hidden_BPE, labels, size, bias)
        weight_sum = weights.sum()
        metrics = {"accuracy": (jnp.sum(weights * scores.hits), weight_sum)}
        kind = batch.get("lm_kind", jnp.zeros(len(weights), jnp.int32))[:, None]
        for number, name in enumerate(("masked", "causal")):
            own = weights * (kind == number)
            metrics[f"{name}_loss"] = scores.cross_entropy(own), own.sum()
        loss_sum = scores.cross_entropy(
            weights,
            label_smoothing=self.label_smoothing if train else 0.0,
            z_loss=self.z_loss if train else 0.0,
        )
        return loss_sum, weight_sum, metrics

    def head(
        self, encoder: Encoder, sequence: Float[Array, "B L D"], positions: Int[Array, "B P"]
    ) -> tuple[Float[Array, "B P E"], Float[Array, " V"]]:
        """Inputs of the output layer for tokens at the given positions: those of one before."""
        return super().head(encoder, sequence, jnp.maximum(positions - 1, 0))

    def maskable(self, batch: Batch) -> Bool[Array, "B L"]:
        """Which tokens are neither padding nor special and follow a token of the same text."""
        padding_mask = masks.padding_mask(batch["attention_mask"])
        follows = jnp.roll(padding_mask, 1, axis=1).at[:, 0].set(False)
        if "pack_ids" in batch:
            pack_ids = batch["pack_ids"]
            follows &= pack_ids == jnp.roll(pack_ids, 1, axis=1)
        return super().maskable(batch) & follows

    def _limit(self, length: int) -> int:
        share = max(self.masked_lm_prob, self.final_masked_lm_prob)
        return min(self.max_predictions_per_seq or math.ceil(share * length), length)

    def _budget(self, batch: Batch, maskable: Bool[Array, "B L"], limit: int) -> Int[Array, " B"]:
        if not self.final_masked_lm_prob:
            return super()._budget(batch, maskable, limit)
        share = jnp.full(len(maskable), self.final_masked_lm_prob)
        if "train_step" in batch:
            done = jnp.clip(batch["train_step"] / self.num_train_steps, 0.0, 1.0)
            share = self.masked_lm_prob + done * (self.final_masked_lm_prob - self.masked_lm_prob)
        available = maskable.sum(axis=1)
        num_masked = jnp.round(share * available).astype(jnp.int32).clip(1, limit)
        return jnp.minimum(num_masked, available)
