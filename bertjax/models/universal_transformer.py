"""The Universal Transformer's encoder (Dehghani et al. 2019): one block with ACT halting."""

import math

import flax.linen as nn

from bertjax.constraints import (
    DropoutRate,
    Epsilon,
    InitStddev,
    PositiveInt,
    ShareBelowOne,
    check_module,
)
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.adaptive_computation import AdaptiveComputation
from bertjax.layers.attention import SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.dense import ActivationName, PrecisionName, get_precision, truncated_normal
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import Embedding
from bertjax.layers.stacked_model import TiedEmbeddings
from bertjax.models.bert import EQUAL_HEADS
from bertjax.pretrainer import Encoded


class Model(TiedEmbeddings, nn.Module):
    """Universal Transformer encoder, with fields named as BERT's; defaults of the base model.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: T, the largest number of steps.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of the feed-forward nets.
      hidden_act: Activation of the feed-forward net.
      hidden_dropout_prob: Dropout of embeddings and of the two outputs of the block.
      attention_probs_dropout_prob: Dropout of the attention weights.
      halting_threshold: A token halts once the sum of its halting probabilities exceeds it; 0: all
        tokens take T steps.
      initializer_range: Initial standard deviation of all kernels.
      layer_norm_eps: Epsilon of every LayerNorm.
      output_hidden_states: Whether `Encoded.hidden_states` is filled: embeddings, then each step.
      precision: A key of PRECISIONS of `layers/dense.py`, such as "bfloat16".
      unroll: Steps compiled in one piece.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`).
    """

    vocab_size: PositiveInt = 32000
    hidden_size: PositiveInt = 1024
    num_hidden_layers: PositiveInt = 6
    num_attention_heads: PositiveInt = 16
    intermediate_size: PositiveInt = 4096
    hidden_act: ActivationName = "relu"
    hidden_dropout_prob: DropoutRate = 0.1
    attention_probs_dropout_prob: DropoutRate = 0.1
    halting_threshold: ShareBelowOne = 0.99
    initializer_range: InitStddev = 0.02
    layer_norm_eps: Epsilon = 1e-6
    output_hidden_states: bool = False
    precision: PrecisionName = "float32"
    unroll: PositiveInt = 1
    attention_kernel: KernelName = ""

    relations = (EQUAL_HEADS,)

    supports_packing = False  # its positions count from the start of the row

    def setup(self):
        check_module(self)
        precision = get_precision(self.precision)
        # Scaled by sqrt(D) when read, words are as large as the position embeddings added to them.
        start = truncated_normal(self.hidden_size**-0.5)
        self.word_embeddings = Embedding(
            self.vocab_size, self.hidden_size, ("vocab", "embed"), start, precision
        )
        self.dropout = Dropout(self.hidden_dropout_prob)
        attention = SelfAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            self.initializer_range,
            precision,
            kernel=self.attention_kernel,
        )
        feed_forward = FeedForward(
            self.intermediate_size, self.hidden_act, self.initializer_range, precision
        )
        self.pondering = AdaptiveComputation(
            PostNormBlock(attention, feed_forward, self.hidden_dropout_prob, self.layer_norm_eps),
            self.num_hidden_layers,
            self.halting_threshold,
            unroll=self.unroll,
        )

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        embedded = self.word_embeddings(batch["input_ids"]) * math.sqrt(self.hidden_size)
        embedded = self.dropout(embedded, train=train)
        sequence, ponder, states = self.pondering(embedded, masks.from_batch(batch), train=train)
        return Encoded(
            sequence,
            hidden_states=(embedded, *states) if self.output_hidden_states else None,
            ponder=ponder,
        )
