"""Causal language model (Radford et al. 2018, section 3.1): predict each token from those before.

Every token is predicted, but logits of a whole batch [B L V] never exist: they are computed for an
eighth of the positions at a time and rematerialised in the backward pass.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax import pretrainer
from bertjax.constraints import NonNegativeFloat, NonNegativeInt, ShareBelowOne, Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses, masks
from bertjax.pretrainer import Encoded, Encoder, Sum


class Objective(pretrainer.Objective):
    """Predicts every token but the first one of a row.

    The attention of the model must be causal (`is_causal`), as in `models/gpt1.py`.

    Attributes:
      weight: Share in the total loss.
      positions_at_once: Positions of every row whose logits are computed at a time; 0 for an eighth
        of the sequence length, rounded up.
      label_smoothing: Share of each label that is spread over the vocabulary; in training alone.
      z_loss: Factor of the squared logarithm of the softmax's normalizer; in training alone.
    """

    weight: Weight = 1.0
    positions_at_once: NonNegativeInt = 0
    label_smoothing: ShareBelowOne = 0.0
    z_loss: NonNegativeFloat = 0.0

    predicts_tokens = True
    metrics = (("accuracy", "max"),)
    generates = True
    pipeline_tag = "text-generation"
    summary = pretrainer.token_summary("LM")

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the next tokens.

        Evaluation has neither label smoothing nor z-loss: its loss has a perplexity.

        Raises:
          UserError: the attention of the model is not causal, so that every token sees its label.
        """
        if not getattr(encoder, "is_causal", False):
            raise UserError(
                f"objective causal_lm: got a model whose tokens see the next one "
                f"({type(encoder).__module__.rpartition('.')[2]}), expected a causal one, such as "
                "gpt1 or gpt2; choose another model or objective"
            )
        labels, weights = next_token_targets(batch)
        scores = self._label_scores(encoder, encoded.sequence, labels)
        weight_sum = weights.sum()
        accuracy = (jnp.sum(weights * scores.hits), weight_sum)
        loss_sum = scores.cross_entropy(
            weights,
            label_smoothing=self.label_smoothing if train else 0.0,
            z_loss=self.z_loss if train else 0.0,
        )
        return loss_sum, weight_sum, {"accuracy": accuracy}

    def predictions(
        self, encoder: Encoder, sequence: Float[Array, "B L D"], labels: Int[Array, "B L"]
    ) -> tuple[Float[Array, "B L"], Bool[Array, "B L"]]:
        """The log probability of each label, and whether it has the highest score."""
        scores = self._label_scores(encoder, sequence, labels)
        return scores.log_probs, scores.hits

    def _label_scores(
        self, encoder: Encoder, sequence: Float[Array, "B L D"], labels: Int[Array, "B L"]
    ) -> losses.LabelScores:
        return losses.chunked_softmax(
            encoder, self.logits, sequence, labels, self.positions_at_once
        )

    def logits(self, encoder: Encoder, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Logits of the next token."""
        return encoder.attend(hidden).astype(jnp.float32)

    def token_logits(self, encoder: Encoder, encoded: Encoded) -> Float[Array, "B L V"]:
        """Logits of the next token at every position, for inspection of a trained model."""
        return self.logits(encoder, encoded.sequence)


def next_token_targets(batch: Batch) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """Labels, the next token of each one, and the weight of each prediction."""
    input_ids, padding_mask = batch["input_ids"], masks.padding_mask(batch["attention_mask"])
    labels = jnp.roll(input_ids, -1, axis=1)
    weights = (
        (padding_mask & jnp.roll(padding_mask, -1, axis=1)).astype(jnp.float32).at[:, -1].set(0.0)
    )
    example_weight = batch.get("example_weight", jnp.ones(len(input_ids)))
    return labels, weights * example_weight[:, None]
