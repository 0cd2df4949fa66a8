"""Span boundary objective (Joshi et al. 2020, section 3.2): predict spans from their boundaries."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax import pretrainer
from bertjax.constraints import PositiveInt, Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses, masks
from bertjax.layers.dense import add_bias, get_precision, truncated_normal
from bertjax.layers.embeddings import Embedding
from bertjax.layers.heads import prediction_transform
from bertjax.pretrainer import Encoded, Encoder, Sum


class Objective(pretrainer.Objective):
    """Predicts each token of a span from both neighbours of the span and its position in it.

    The spans are those that the objective `mlm` masks with `masking="span"`. Spans at either end of
    the sequence lack a neighbour and are not predicted, nor are positions beyond `num_positions`.

    Attributes:
      weight: Share in the total loss.
      num_positions: Number of position embeddings.
      position_embedding_size: Width of these embeddings (section 4.3: 200).
    """

    weight: Weight = 1.0
    num_positions: PositiveInt = 200
    position_embedding_size: PositiveInt = 200

    follows = ("mlm", "unified_lm")  # one of these precedes it in a config
    predicts_tokens = True
    metrics = (("accuracy", "max"),)
    summary = pretrainer.token_summary("SBO")

    @nn.compact
    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the masked tokens that have two neighbours."""
        if "mlm_spans" not in batch:
            raise UserError(
                "objective sbo requires masked spans; put mlm before it, with "
                "--config.objectives.mlm.masking=span"
            )
        before, after = batch["mlm_spans"][..., 0] - 1, batch["mlm_spans"][..., 1] + 1
        span_position = batch["mlm_positions"] - before - 1
        logits_BPV = self.logits(encoder, encoded.sequence, before, after, span_position)
        weights = batch["mlm_weights"] * self._predictable(batch, before, after, span_position)
        weight_sum, labels = weights.sum(), batch["mlm_labels"]
        accuracy = (losses.count_correct(logits_BPV, labels, weights), weight_sum)
        return losses.cross_entropy(logits_BPV, labels, weights), weight_sum, {"accuracy": accuracy}

    @nn.compact
    def logits(
        self,
        encoder: Encoder,
        sequence: Float[Array, "B L D"],
        before: Int[Array, "B P"],
        after: Int[Array, "B P"],
        span_position: Int[Array, "B P"],
    ) -> Float[Array, "B P V"]:
        """Logits: two layers over both neighbours and the position in the span."""
        precision = get_precision(encoder.precision)
        table = Embedding(
            self.num_positions,
            self.position_embedding_size,
            (None, None),
            truncated_normal(encoder.initializer_range),
            precision,
            name="position_embeddings",
        )

        def token_at(position):
            position = position.clip(0, sequence.shape[1] - 1)
            return jnp.take_along_axis(sequence, position[..., None], axis=1)

        span_position = table(span_position.clip(0, self.num_positions - 1))
        hidden = jnp.concatenate([token_at(before), token_at(after), span_position], axis=-1)
        for features, name in ((encoder.hidden_size, "first"), (encoder.embedding_size, "second")):
            hidden = prediction_transform(encoder, name, features=features)(hidden)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        bias = self.param("bias", zeros, (encoder.vocab_size,))
        return add_bias(encoder.attend(hidden).astype(jnp.float32), bias)

    def _predictable(
        self,
        batch: Batch,
        before: Int[Array, "B P"],
        after: Int[Array, "B P"],
        span_position: Int[Array, "B P"],
    ) -> Float[Array, "B P"]:
        """1 where both neighbours exist, in one document, and the position has an embedding."""
        padding_mask = masks.padding_mask(batch["attention_mask"])
        length = padding_mask.shape[1]
        follows = jnp.take_along_axis(padding_mask, after.clip(0, length - 1), axis=1) & (
            after < length
        )
        exist = (before >= 0) & follows
        if "pack_ids" in batch:
            first, second = (
                jnp.take_along_axis(batch["pack_ids"], position.clip(0, length - 1), axis=1)
                for position in (before, after)
            )
            exist &= first == second
        return (exist & (span_position < self.num_positions)).astype(jnp.float32)
