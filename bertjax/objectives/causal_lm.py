"""Causal language model (Radford et al. 2018, section 3.1): predict each token from those before.

Every token is predicted, and still the vocabulary's scores of a whole batch [B L V] never exist:
they are made for an eighth of the positions at a time, and again in the backward pass.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax import pretrainer
from bertjax.constraints import NonNegativeInt, Weight
from bertjax.interfaces import Batch
from bertjax.layers import losses, masks
from bertjax.pretrainer import Encoded, Encoder, Sum


class Objective(pretrainer.Objective):
    """Predicts every token but the first one of a row.

    The model has to hide what follows a token: `models/gpt1.py` and `models/gpt2.py` do.

    Attributes:
      weight: Share in the total loss.
      positions_at_once: Positions of every row that meet the vocabulary at the same time; 0 stands
        for an eighth of the sequence length, rounded up.
    """

    weight: Weight = 1.0
    positions_at_once: NonNegativeInt = 0

    predicts_tokens = True
    metrics = (("accuracy", "max"),)
    generates = True
    pipeline_tag = "text-generation"
    summary = pretrainer.token_summary("LM")

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the tokens that follow."""
        labels, weights = following(batch)
        log_probs, hits = self.predictions(encoder, encoded.sequence, labels)
        weight_sum = weights.sum()
        accuracy = (jnp.sum(weights * hits), weight_sum)
        return -jnp.sum(weights * log_probs), weight_sum, {"accuracy": accuracy}

    def predictions(
        self, encoder: Encoder, sequence: Float[Array, "B L D"], labels: Int[Array, "B L"]
    ) -> tuple[Float[Array, "B L"], Bool[Array, "B L"]]:
        """The log probability of each label, and whether no other token is as likely."""
        scores = losses.chunked_softmax(
            encoder, self.logits, sequence, labels, self.positions_at_once
        )
        return scores.log_probs, scores.hits

    def logits(self, encoder: Encoder, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Scores of what follows each vector's token."""
        return encoder.attend(hidden).astype(jnp.float32)


def following(batch: Batch) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """The token after each one, and how much its prediction counts."""
    input_ids, there = batch["input_ids"], masks.padding_mask(batch["attention_mask"])
    labels = jnp.roll(input_ids, -1, axis=1)
    weights = (there & jnp.roll(there, -1, axis=1)).astype(jnp.float32).at[:, -1].set(0.0)
    example_weight = batch.get("example_weight", jnp.ones(len(input_ids)))
    return labels, weights * example_weight[:, None]
