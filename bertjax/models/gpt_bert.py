"""GPT-BERT (Charpentier & Samuel 2024) and LTG-BERT (Samuel et al. 2023).

Pre-norm blocks with LayerNorms inside (NormFormer), GeGLU, and disentangled attention with
logarithmic buckets of distances; there are no absolute positions. GPT-BERT adds a gate of the
attention and depth-weighted sums of layers. The mask of the batch determines whether attention is
bidirectional or causal (`objectives/mntp.py`). Details that the papers leave open are those of the
released code.
"""

import math

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from bertjax.constraints import (
    DropoutRate,
    Epsilon,
    InitStddev,
    PositiveInt,
    Relation,
    check_module,
)
from bertjax.interfaces import Batch
from bertjax.layers import disentangled_attention, masks
from bertjax.layers.alternating_stack import AlternatingStack
from bertjax.layers.dense import ActivationName, PrecisionName, get_precision, truncated_normal
from bertjax.layers.depth_weighted_stack import DepthWeightedStack
from bertjax.layers.disentangled_attention import RelativePositions
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import Embedding, LayerNorm
from bertjax.layers.stack import RematPolicy
from bertjax.layers.stacked_model import TiedEmbeddings
from bertjax.layers.sub_norm import (
    SubNormAttention,
    SubNormBlock,
    SubNormFeedForward,
    plain_norm,
)
from bertjax.models.bert import EQUAL_HEADS
from bertjax.pretrainer import Encoded

_FEED_FORWARD_ACT = "gelu_new"


class Model(TiedEmbeddings, nn.Module):
    """GPT-BERT, with the fields of its config; the defaults are those of the BabyLM base model.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of the feed-forward nets.
      hidden_act: Activation of the attention gate and the prediction head; the feed-forward nets
        have GELU approximated by tanh.
      hidden_dropout_prob: Dropout of embeddings and of the two outputs of each block.
      attention_probs_dropout_prob: Dropout of the attention weights and of the embeddings of
        relative positions.
      max_position_embeddings: Longest sequence, and the longest distance that is distinguished.
      position_bucket_size: Buckets of distances on either side, logarithmic from the middle on.
      attention_gate: Whether attention has a gate, as in GPT-BERT.
      layer_weights: Whether layers read weighted sums of all earlier outputs, as in GPT-BERT.
      interleaved_positions: How the projected relative positions are divided into heads
        (`layers/sub_norm.py`); True for imported LTG-BERTs whose code does so.
      head_norm_parameters: Whether the LayerNorm of prediction heads has a scale and a bias; it has
        neither in the released code.
      initializer_range: Initial standard deviation of all kernels and tables, sqrt(2 / (5 D)) as
        published; those of the feed-forward net of layer i, from 0, have this times
        sqrt(1 / (2 + 2 i)).
      layer_norm_eps: Epsilon of every LayerNorm.
      output_hidden_states: Whether `Encoded.hidden_states` is filled: embeddings, then each layer,
        before the last LayerNorm.
      precision: A key of PRECISIONS of `layers/dense.py`, such as "bfloat16".
      remat: Rematerialisation policy of the backward pass (`layers/stack.py`).
      unroll: Layers compiled in one piece (`layers/stack.py`).
    """

    vocab_size: PositiveInt = 16384
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 2560
    hidden_act: ActivationName = "gelu"
    hidden_dropout_prob: DropoutRate = 0.1
    attention_probs_dropout_prob: DropoutRate = 0.1
    max_position_embeddings: PositiveInt = 512
    position_bucket_size: PositiveInt = 32
    attention_gate: bool = True
    layer_weights: bool = True
    interleaved_positions: bool = False
    head_norm_parameters: bool = True
    initializer_range: InitStddev = math.sqrt(2 / (5 * 768))
    layer_norm_eps: Epsilon = 1e-5
    output_hidden_states: bool = False
    precision: PrecisionName = "float32"
    remat: RematPolicy = "none"
    unroll: PositiveInt = 1

    relations = (
        EQUAL_HEADS,
        Relation(
            ("position_bucket_size", "max_position_embeddings"),
            lambda buckets, max_distance: 1 < buckets < 2 * (max_distance - 1),
            "position_bucket_size from 2 to 2 * max_position_embeddings - 3",
        ),
    )

    def setup(self):
        check_module(self)
        precision, normal = get_precision(self.precision), truncated_normal(self.initializer_range)
        self.word_embeddings = Embedding(
            self.vocab_size, self.hidden_size, ("vocab", "embed"), normal, precision
        )
        self.relative_embeddings = Embedding(
            2 * self.position_bucket_size - 1, self.hidden_size, (None, "embed"), normal, precision
        )
        self.relative_norm = LayerNorm(self.layer_norm_eps)
        self.embeddings_norm = plain_norm(self.layer_norm_eps, "embeddings_norm")
        self.dropout = Dropout(self.hidden_dropout_prob)
        # Layers differ in their initial values alone, so that a scan over one block applies all.
        blocks = tuple(map(self._block, range(self.num_hidden_layers)))
        fields = {
            "num_layers": self.num_hidden_layers,
            "remat": self.remat,
            "unroll": self.unroll,
            "keep_hidden_states": self.output_hidden_states,
            "init_blocks": blocks,
        }
        if self.layer_weights:
            self.layers = DepthWeightedStack(blocks[0], **fields)
        else:
            self.layers = AlternatingStack(blocks[:1], **fields)
        self.norm = plain_norm(self.layer_norm_eps, "norm")

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        words = self.embeddings_norm(self.word_embeddings(batch["input_ids"]))
        embedded = self.dropout(words, train=train)
        sequence, states = self.layers(embedded, self._relative_positions(batch), train=train)
        hidden_states = None if states is None else (embedded, *states)
        return Encoded(self.norm(sequence), hidden_states=hidden_states)

    def _relative_positions(self, batch: Batch) -> RelativePositions:
        """Mask, and the embeddings of the relative positions from -(k - 1) to k - 1."""
        length, max_distance = batch["input_ids"].shape[1], self.max_position_embeddings - 1
        distances = np.arange(length, -length - 1, -1).clip(-max_distance, max_distance)
        rows = disentangled_attention.relative_positions(
            distances, self.position_bucket_size, self.max_position_embeddings
        )
        every = jnp.arange(2 * self.position_bucket_size - 1)
        embeddings = self.relative_norm(self.relative_embeddings(every))
        # Relative positions are numbered from -k, which no distance has.
        return RelativePositions(masks.from_batch(batch), embeddings, rows - 1)

    def _block(self, layer: int) -> SubNormBlock:
        precision, epsilon = get_precision(self.precision), self.layer_norm_eps
        attention = SubNormAttention(
            self.num_attention_heads,
            share_att_key=True,
            dropout_rate=self.attention_probs_dropout_prob,
            position_dropout_rate=self.attention_probs_dropout_prob,
            initializer_range=self.initializer_range,
            precision=precision,
            gated=self.attention_gate,
            gate_act=self.hidden_act,
            layer_norm_eps=epsilon,
            interleaved_positions=self.interleaved_positions,
            parent=None,
        )
        feed_forward = SubNormFeedForward(
            self.intermediate_size,
            _FEED_FORWARD_ACT,
            epsilon,
            self.initializer_range * math.sqrt(1 / (2 * (1 + layer))),
            precision,
            parent=None,
        )
        return SubNormBlock(attention, feed_forward, self.hidden_dropout_prob, epsilon, parent=None)
