"""Extractive QA head: start and end scores for every token."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax import pretrainer
from bertjax.constraints import PositiveInt, Weight
from bertjax.interfaces import Batch
from bertjax.layers import heads as layers_heads
from bertjax.layers import losses, masks
from bertjax.layers.heads import TaskClassifier
from bertjax.layers.width_scaling import output_stddev
from bertjax.pretrainer import Encoded, Encoder, Sum

CONTEXT, CLS = 1, 2
"""Values of `answer_places` [B L]: tokens of the context, where an answer may be, and [CLS]."""


class Task(pretrainer.Task):
    """Extractive question answering (Devlin et al. 2019, sections 4.2 and 4.3).

    A linear layer gives each token a start and an end score. The span of a question without an
    answer is [CLS]. Differences from the released code: padding is masked out of the softmax, and
    only tokens of the context are among the n best positions.

    Attributes:
      n_best_size: K, number of start and of end positions that are predicted per window.
      mix_layer_norm: Whether layers are normalised before a scalar mix (`layers/heads.py`).
      token_transform: Whether each token passes the transform of a prediction head first: dense,
        activation, LayerNorm, as in ModernBERT's classes of transformers.
      weight: Weight in the total loss.
    """

    n_best_size: PositiveInt = 20
    mix_layer_norm: bool = False
    token_transform: bool = False
    weight: Weight = 1.0

    metrics = (("exact_span", "max"),)
    label_shape = (2,)
    pipeline_tag = "question-answering"

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the mean of the start and end cross entropy over the windows, in nats."""
        logits_B2L, weights = self.scores(encoder, encoded, batch, train=train)
        labels = batch["labels"]
        both = weights[:, None] * jnp.ones((1, 2))
        loss_sum, weight_sum = losses.cross_entropy(logits_B2L, labels, both) / 2, weights.sum()
        right = jnp.all(jnp.argmax(logits_B2L, axis=-1) == labels, axis=-1)
        return loss_sum, weight_sum, {"exact_span": (jnp.sum(weights * right), weight_sum)}

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, "B S"]:
        """Returns the n best start and end positions of each window, S = 4 K + 1 columns.

        K start scores and their positions, K end scores and their positions, and the sum of the
        start and end score of [CLS]. If a context has fewer than K tokens, the remaining scores are
        minus infinity.
        """
        logits_B2L, _ = self.scores(encoder, encoded, batch, train=False)
        marks = batch["answer_places"][:, None]
        # Taken only among context tokens: BERT's code takes the 20 best of all tokens first and
        # then drops those of the question and of padding, which can leave too few.
        null = jnp.sum(jnp.where(marks == CLS, logits_B2L, 0.0), axis=(1, 2))
        allowed = jnp.where(marks == CONTEXT, logits_B2L, -jnp.inf)
        missing = max(self.n_best_size - allowed.shape[-1], 0)
        allowed = jnp.pad(allowed, ((0, 0), (0, 0), (0, missing)), constant_values=-jnp.inf)
        values, positions = jax.lax.top_k(allowed, self.n_best_size)
        best = jnp.stack([values, positions.astype(jnp.float32)], axis=2)
        return jnp.concatenate([best.reshape(len(best), -1), null[:, None]], axis=1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B 2 L"], Float[Array, " B"]]:
        """Returns the start and end logits of every token, and the weight of each window."""
        sequence = layers_heads.token_output(
            encoder,
            encoded,
            mix_layer_norm=self.mix_layer_norm,
            transform=self.token_transform,
        )
        logits = TaskClassifier(2, output_stddev(encoder), name="classifier")(sequence)
        key_mask = masks.padding_mask(batch["attention_mask"])[:, None]
        logits_B2L = jnp.where(key_mask, logits.swapaxes(1, 2), jnp.finfo(jnp.float32).min)
        return logits_B2L, batch.get("example_weight", jnp.ones(len(sequence)))
