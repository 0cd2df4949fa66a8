"""Bidirectional language model (Peters et al. 2018, section 3.1): a forward and a backward LM."""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax import pretrainer
from bertjax.constraints import NonNegativeInt, PositiveInt, Relation, TokenId, Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses as layers_losses
from bertjax.layers import masks
from bertjax.layers.dense import Precision, add_bias, contract, get_precision, truncated_normal
from bertjax.pretrainer import Encoded, Encoder, Sum


class Objective(pretrainer.Objective):
    """Predicts each word from those before it, and from those after it, with one softmax.

    The vector of a token must be that of the forward direction, then that of the backward one. The
    softmax is exact (published: 8,192 sampled words); rare words are predicted as unknown.

    Attributes:
      special_ids: Tokens that are never predicted, except the unknown word.
      unk_id: The unknown word.
      weight: Share in the total loss.
      softmax_size: Size of the softmax over the first words of the vocabulary; all others are
        predicted as unknown. 0 for the whole vocabulary.
      positions_at_a_time: Positions of each example whose logits are computed at a time.
    """

    special_ids: tuple[TokenId, ...]
    unk_id: TokenId | None = None
    weight: Weight = 1.0
    softmax_size: NonNegativeInt = 0
    positions_at_a_time: PositiveInt = 8

    model_relations = (
        Relation(
            ("softmax_size", "vocab_size"),
            lambda size, vocabulary: size <= vocabulary,
            "softmax_size <= vocab_size",
            "lower softmax_size, or set it to 0 for the whole vocabulary",
        ),
    )
    predicts_tokens = True
    metrics = (("accuracy", "max"), ("forward_loss", "min"), ("backward_loss", "min"))
    summary = pretrainer.token_summary("BiLM")

    @nn.nowrap
    def unigram_options(self) -> dict[str, Any]:
        """Rare words are predicted as unknown, so the baseline counts them as unknown."""
        return {"unk_id": self.unk_id, "softmax_size": self.softmax_size}

    @nn.compact
    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """The mean over both directions of the cross entropy of a word."""
        size = self._size(encoder)
        width = encoded.sequence.shape[-1] // 2
        table = self.param(
            "table",
            nn.with_logical_partitioning(truncated_normal(width**-0.5), ("vocab", "embed")),
            (size, width),
        )
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        bias = self.param("bias", zeros, (size,))
        labels, weights = self._targets(batch, size)
        losses, correct, metrics = [], [], {}
        for name, hidden in self._hidden(encoded.sequence, width).items():
            scores = layers_losses.chunked_softmax(
                self,
                functools.partial(_scores, precision=get_precision(encoder.precision)),
                hidden,
                labels,
                self.positions_at_a_time,
                *(table, bias),
            )
            losses.append(-jnp.sum(weights * scores.log_probs))
            correct.append(jnp.sum(weights * scores.hits))
            metrics[f"{name}_loss"] = (losses[-1], weights.sum())
        weight_sum = 2 * weights.sum()
        metrics["accuracy"] = (sum(correct), weight_sum)
        return sum(losses), weight_sum, metrics

    def _hidden(
        self, sequence: Float[Array, "B L D"], width: int
    ) -> dict[str, Float[Array, "B L P"]]:
        """The vector that predicts each token, from its left and from its right context."""
        edge = jnp.zeros_like(sequence[:, :1, :width])
        return {
            "forward": jnp.concatenate([edge, sequence[:, :-1, :width]], axis=1),
            "backward": jnp.concatenate([sequence[:, 1:, width:], edge], axis=1),
        }

    def _targets(self, batch: Batch, size: int) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
        ids, padding_mask = batch["input_ids"], masks.padding_mask(batch["attention_mask"])
        weights = (padding_mask & ~self._is_excluded(ids)).astype(jnp.float32)
        example_weight = batch.get("example_weight", jnp.ones(len(ids)))
        labels = ids if self.unk_id is None else jnp.where(ids < size, ids, self.unk_id)
        return labels, weights * example_weight[:, None]

    def _size(self, encoder: Encoder) -> int:
        if self.softmax_size > encoder.vocab_size:
            raise UserError(
                f"softmax_size: got {self.softmax_size}, expected at most {encoder.vocab_size}, "
                "the size of the vocabulary; lower it, or set it to 0 for all words"
            )
        if self.softmax_size and self.unk_id is None:
            raise UserError(
                f"softmax_size={self.softmax_size} requires a tokenizer with an unknown word; set "
                "it to 0"
            )
        return self.softmax_size or encoder.vocab_size

    def _is_excluded(self, ids: Int[Array, "B L"]) -> Bool[Array, "B L"]:
        excluded = [special for special in self.special_ids if special != self.unk_id]
        return jnp.isin(ids, jnp.asarray(excluded, ids.dtype))


def _scores(
    module: nn.Module,
    hidden: Float[Array, "B L P"],
    table: Float[Array, "V P"],
    bias: Float[Array, " V"],
    *,
    precision: Precision,
) -> Float[Array, "B L V"]:
    """Logits: dot products with the vector of each word."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    scores = contract("nd,vd->nv", flat, table, precision).astype(jnp.float32)
    return add_bias(scores, bias).reshape(*hidden.shape[:-1], -1)
