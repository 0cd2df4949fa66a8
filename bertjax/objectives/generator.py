"""ELECTRA's generator (Clark et al. 2020, section 3.1): samples replacements of masked tokens.

It shares the embeddings of the encoder, which `rtd` trains to detect the replacements, and is not
part of a fine-tuned model.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from jax import lax
from jaxtyping import Array

from bertjax import pretrainer
from bertjax.constraints import (
    NonNegativeInt,
    PositiveInt,
    PositiveShare,
    Relation,
    Share,
    TokenId,
    Weight,
)
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import losses, masking
from bertjax.layers.dense import HeadActivationName
from bertjax.objectives import enhanced_mlm
from bertjax.pretrainer import Encoded, Encoder, Sum

_SAMPLING = 1 << 16
"""Folded into the key for sampling: far from 0, 1, ..., the keys that `jax.random.split` makes."""


class Objective(pretrainer.Objective):
    """Masks tokens as `mlm` does, predicts them, and replaces them by samples.

    No gradient flows through the sampling: the generator is trained by maximum likelihood.

    Attributes:
      mask_id: The [MASK] token.
      special_ids: Tokens that are never replaced.
      vocab_size: V.
      weight: Share in the total loss.
      size: Width, feed-forward width and heads as fractions of the encoder's (section 3.2).
      depth: Number of layers as a fraction of the encoder's; 1/2 in DeBERTaV3.
      mask_decoder_layers: As in `models/deberta.py`, for the generator; 0 for no mask decoder.
      masked_lm_prob: Share of the tokens to replace.
      max_predictions_per_seq: P; 0 for `masked_lm_prob` of the sequence length, rounded up.
      mask_share: Share of the chosen tokens that become [MASK] in the generator's input; the others
        are unchanged. 0.85 in the published code.
      hidden_act: Activation of the head; "" for the encoder's (`objectives/mlm.py`).
    """

    mask_id: TokenId
    special_ids: tuple[TokenId, ...]
    vocab_size: PositiveInt
    weight: Weight = 1.0
    size: PositiveShare = 0.25
    depth: PositiveShare = 1.0
    mask_decoder_layers: NonNegativeInt = 0
    masked_lm_prob: PositiveShare = 0.15
    max_predictions_per_seq: NonNegativeInt = 0
    mask_share: Share = 0.85
    hidden_act: HeadActivationName = ""

    model_relations = (
        Relation(
            ("size", "hidden_size", "num_attention_heads"),
            lambda size, width, heads: _divides(*_shape(size, width, heads)),
            "a share of both for which the width is divisible by the number of heads",
            lambda size, width, heads: f"choose another size, such as {1 / heads:.4g}",
        ),
    )
    rewrites_input = True
    predicts_tokens = True
    metrics = (("accuracy", "max"),)
    summary = pretrainer.token_summary("generator")

    @nn.compact
    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Replaces tokens by samples; the batch keeps the original ones as `original_ids`.

        Raises:
          UserError: the model cannot share its embeddings with a generator.
        """
        if not hasattr(encoder, "embed"):
            raise UserError(
                "objective generator: got a model that shares no embeddings "
                f"({type(encoder).__module__.rpartition('.')[2]}), expected bert or deberta; "
                "choose another model or objective"
            )
        original_ids = batch["input_ids"]
        hiding = enhanced_mlm.Objective(
            self.mask_id,
            self.special_ids,
            self.vocab_size,
            masked_lm_prob=self.masked_lm_prob,
            max_predictions_per_seq=self.max_predictions_per_seq,
            mask_share=self.mask_share,
            random_share=0.0,
            hidden_act=self.hidden_act,
            name="mlm",
        )
        hidden = hiding.prepare(encoder, batch, train=train)
        positions, weights = hidden["mlm_positions"], hidden["mlm_weights"]
        embedded = encoder.embed(hidden, train=train)
        encoded = self._build_encoder(encoder).encode(embedded, hidden, train=train)
        logits_BPV, _ = hiding.scores(encoder, encoded, hidden, train=train)
        keys = jax.vmap(lambda key: jax.random.fold_in(key, _SAMPLING))(batch["example_key"])
        sampled = masking.sample(keys, lax.stop_gradient(logits_BPV))
        return {
            **hidden,
            "input_ids": masking.replace(original_ids, positions, weights, sampled),
            "original_ids": original_ids,
            "generator_logits": logits_BPV,
        }

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of the masked tokens."""
        logits_BPV, labels = batch["generator_logits"], batch["mlm_labels"]
        weights = batch["mlm_weights"]
        weight_sum = weights.sum()
        accuracy = (losses.count_correct(logits_BPV, labels, weights), weight_sum)
        return losses.cross_entropy(logits_BPV, labels, weights), weight_sum, {"accuracy": accuracy}

    def _build_encoder(self, encoder: Encoder) -> nn.Module:
        """Builds a smaller model of the encoder's class; its embeddings are never initialised."""
        if not hasattr(encoder, "encode"):
            raise UserError(
                "objective generator requires a model whose embeddings it can share; set "
                "config.model.name to bert or deberta"
            )
        fields = {field.name: getattr(encoder, field.name) for field in dataclasses.fields(encoder)}
        fields |= generator_fields(fields, self.size, self.depth)
        if "mask_decoder_layers" in fields:
            fields["mask_decoder_layers"] = self.mask_decoder_layers
        elif self.mask_decoder_layers:
            raise UserError(
                f"objective generator: got mask_decoder_layers={self.mask_decoder_layers} with a "
                "model that has no mask decoder, expected 0; or set config.model.name to deberta"
            )
        return type(encoder)(**{**fields, "parent": self, "name": "encoder"})


def _shape(size: float, hidden_size: int, num_attention_heads: int) -> tuple[int, int]:
    """Hidden size and number of heads of the generator."""
    return round(size * hidden_size), max(round(size * num_attention_heads), 1)


def _divides(width: int, heads: int) -> bool:
    return width >= 1 and width % heads == 0


def generator_fields(fields: Mapping[str, Any], size: float, depth: float = 1.0) -> dict[str, int]:
    """The fields in which a generator of this size and depth differs from its encoder.

    Raises:
      UserError: the width is not divisible by the number of heads.
    """
    width, heads = _shape(size, fields["hidden_size"], fields["num_attention_heads"])
    if not _divides(width, heads):
        raise UserError(
            f"objective generator: size={size} of hidden_size={fields['hidden_size']} and "
            f"num_attention_heads={fields['num_attention_heads']} gives a width of {width} for "
            f"{heads} heads: choose a size whose width is a multiple of the heads, such as "
            f"{1 / fields['num_attention_heads']:.4g}"
        )
    found = {
        # The base model's generator is as much smaller: the ratio of the widths is the encoder's.
        "mup_base_width": round(size * fields.get("mup_base_width", 0)),
        "mup_base_heads": round(size * fields.get("mup_base_heads", 0)),
        "hidden_size": width,
        "num_hidden_layers": max(round(depth * fields["num_hidden_layers"]), 1),
        "num_attention_heads": heads,
        "intermediate_size": max(round(size * fields["intermediate_size"]), 1),
        "num_pooler_layers": 0,
    }
    return {name: value for name, value in found.items() if name in fields}
