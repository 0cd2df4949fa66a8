"""Extractive QA head: start and end scores for every token."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.constraints import PositiveInt, Weight
from bertjax.interfaces import Batch
from bertjax.layers import heads as layers_heads
from bertjax.layers import losses, masks
from bertjax.layers.heads import TaskClassifier
from bertjax.pretrainer import Encoded, Encoder, Sum

CONTEXT, CLS = 1, 2
"""What `answer_places` [B L] marks: tokens with which an answer may begin or end, and [CLS]."""


class Task(nn.Module):
    """Devlin et al. 2019, sections 4.2 and 4.3: two scores for each token.

    A question without an answer has [CLS] for its span. Where we differ: padding has no share in
    the softmax, and only tokens of the context are among the best places.

    Attributes:
      n_best_size: How many of the best beginnings and ends are handed on.
      mix_layer_norm: Whether layers that are weighed are normalised (`layers/heads.py`).
      weight: Share in the total loss.
    """

    n_best_size: PositiveInt = 20
    mix_layer_norm: bool = False
    weight: Weight = 1.0

    rewrites_input = False
    predicts_tokens = False
    metrics = (("exact_span", "max"),)
    pipeline_tag = "question-answering"

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        return batch

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """The mean of both cross entropies, in nats; a window counts once."""
        logits_B2L, weights = self.scores(encoder, encoded, batch, train=train)
        labels = batch["labels"]
        both = weights[:, None] * jnp.ones((1, 2))
        loss_sum, weight_sum = losses.cross_entropy(logits_B2L, labels, both) / 2, weights.sum()
        right = jnp.all(jnp.argmax(logits_B2L, axis=-1) == labels, axis=-1)
        return loss_sum, weight_sum, {"exact_span": (jnp.sum(weights * right), weight_sum)}

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, "B S"]:
        """For each window S = 4 K + 1 numbers.

        Scores of the K best beginnings, their places; scores of the K best ends, their places; and
        the score of [CLS], its two together. K is `n_best_size`; what is not there has minus
        infinity.
        """
        logits_B2L, _ = self.scores(encoder, encoded, batch, train=False)
        marks = batch["answer_places"][:, None]
        null = jnp.sum(jnp.where(marks == CLS, logits_B2L, 0.0), axis=(1, 2))
        allowed = jnp.where(marks == CONTEXT, logits_B2L, -jnp.inf)
        missing = max(self.n_best_size - allowed.shape[-1], 0)
        allowed = jnp.pad(allowed, ((0, 0), (0, 0), (0, missing)), constant_values=-jnp.inf)
        values, places = jax.lax.top_k(allowed, self.n_best_size)
        best = jnp.stack([values, places.astype(jnp.float32)], axis=2)
        return jnp.concatenate([best.reshape(len(best), -1), null[:, None]], axis=1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B 2 L"], Float[Array, " B"]]:
        """Scores of every token as beginning and as end, and how much each window counts."""
        sequence = layers_heads.token_output(encoded, mix_layer_norm=self.mix_layer_norm)
        logits = TaskClassifier(2, encoder.initializer_range, name="classifier")(sequence)
        there = masks.padding_mask(batch["attention_mask"])[:, None]
        logits_B2L = jnp.where(there, logits.swapaxes(1, 2), jnp.finfo(jnp.float32).min)
        return logits_B2L, batch.get("example_weight", jnp.ones(len(sequence)))
