"""BERT's encoder (Devlin et al. 2019): embeddings, a stack of post-norm blocks, a pooler.

RoBERTa, SpanBERT, K-BERT, DistilBERT, TinyBERT and both towers of ELECTRA are this module with
other numbers.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.errors import UserError, nearest
from bertjax.interfaces import Batch, Encoded
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.dense import Initializer, truncated_normal
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import Embedding
from bertjax.layers.heads import Pooler
from bertjax.layers.norm import LayerNorm
from bertjax.layers.positions import sinusoidal
from bertjax.layers.precision import Precision, named
from bertjax.layers.stack import Stack


class Embeddings(nn.Module):
    """Sum of word, position and segment vectors, then LayerNorm and dropout (figure 2)."""

    words: Embedding
    positions: Embedding
    segments: Embedding | None
    position_offset: int
    layer_norm_eps: float
    dropout_rate: float

    @nn.compact
    def __call__(self, batch: Batch, *, train: bool) -> Float[Array, "B L D"]:
        input_ids = batch["input_ids"]
        places = jnp.arange(input_ids.shape[1])[None] + self.position_offset
        x = self.words(input_ids) + self.positions(batch.get("position_ids", places))
        if self.segments is not None:
            x = x + self.segments(batch.get("segment_ids", jnp.zeros_like(input_ids)))
        x = LayerNorm(self.layer_norm_eps, name="norm")(x)
        return Dropout(self.dropout_rate)(x, train=train)


class Model(nn.Module):
    """Fields are the words of the published `bert_config.json`; the defaults are BERT-base's.

    Attributes:
      vocab_size: V.
      hidden_size: D.
      num_hidden_layers: N.
      num_attention_heads: H; divides `hidden_size`.
      intermediate_size: F.
      hidden_act: Activation of the feed-forward nets and the prediction head.
      hidden_dropout_prob: Dropout of embeddings and of the two outputs of each block.
      attention_probs_dropout_prob: Dropout of the attention weights.
      max_position_embeddings: Longest sequence, and `position_offset`.
      position_offset: Number of the first position: RoBERTa's is 2.
      type_vocab_size: Number of segment kinds; with 0 there are no segment vectors (DistilBERT).
      initializer_range: Standard deviation of all kernels and tables at the start.
      position_initializer: "normal" as published, or "sinusoidal" (`layers/positions.py`), which
        short runs profit from; positions are learned either way.
      layer_norm_eps: Epsilon of every LayerNorm.
      pooler_act: Activation of the pooled output: the published tanh; DistilBERT classifies after
        relu.
      output_hidden_states: Whether `Encoded.hidden_states` is filled: embeddings, then each layer.
      precision: "float32", "bfloat16" or "bfloat16_operands" (`layers/precision.py`).
      remat: What the backward pass computes again (`layers/stack.py`).
      unroll: Layers compiled in one piece (`layers/stack.py`).
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    position_offset: int = 0
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    position_initializer: str = "normal"
    layer_norm_eps: float = 1e-12
    pooler_act: str = "tanh"
    output_hidden_states: bool = False
    precision: str = "float32"
    remat: str = "none"
    unroll: int = 1

    def setup(self):
        self._check()
        precision = named(self.precision)
        normal = truncated_normal(self.initializer_range)
        self.word_embeddings = self._table(self.vocab_size, "vocab", normal)
        self.position_embeddings = self._table(
            self.max_position_embeddings, None, self._position_initializer()
        )
        self.segment_embeddings = (
            self._table(self.type_vocab_size, None, normal) if self.type_vocab_size else None
        )
        self.embeddings = Embeddings(
            self.word_embeddings,
            self.position_embeddings,
            self.segment_embeddings,
            self.position_offset,
            self.layer_norm_eps,
            self.hidden_dropout_prob,
        )
        self.layers = Stack(
            self._block(precision),
            self.num_hidden_layers,
            remat=self.remat,
            unroll=self.unroll,
            keep_hidden_states=self.output_hidden_states,
        )
        self.pooler = Pooler(self.initializer_range, precision, self.pooler_act)

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        length = batch["input_ids"].shape[1]
        if length + self.position_offset > self.max_position_embeddings:
            offset = f" and position_offset={self.position_offset}" if self.position_offset else ""
            raise UserError(
                f"a sequence of {length} tokens{offset} exceeds "
                f"max_position_embeddings={self.max_position_embeddings}: shorten it or raise that"
            )
        embedded = self.embeddings(batch, train=train)
        sequence, states = self.layers(embedded, masks.from_batch(batch), train=train)
        hidden_states = None if states is None else (embedded, *states)
        return Encoded(sequence, self.pooler(sequence), hidden_states)

    def attend(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Scores of the vocabulary: products with the word embeddings."""
        return self.word_embeddings.attend(hidden)

    @property
    def embedding_size(self) -> int:
        """Width of the word embeddings."""
        return self.hidden_size

    def _table(self, rows: int, axis: str | None, initializer: Initializer) -> Embedding:
        axes = (axis, "embed")
        return Embedding(rows, self.hidden_size, axes, initializer, named(self.precision))

    def _position_initializer(self) -> Initializer:
        known = {"normal": truncated_normal, "sinusoidal": sinusoidal}
        if self.position_initializer not in known:
            raise UserError(
                f"position_initializer={self.position_initializer!r}: "
                f"{nearest(self.position_initializer, known)}"
            )
        return known[self.position_initializer](self.initializer_range)

    def _block(self, precision: Precision) -> PostNormBlock:
        attention = SelfAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            self.initializer_range,
            precision,
        )
        feed_forward = FeedForward(
            self.intermediate_size, self.hidden_act, self.initializer_range, precision
        )
        return PostNormBlock(attention, feed_forward, self.hidden_dropout_prob, self.layer_norm_eps)

    def _check(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            low = self.hidden_size // self.num_attention_heads * self.num_attention_heads
            sizes = [size for size in (low, low + self.num_attention_heads) if size]
            raise UserError(
                f"hidden_size={self.hidden_size} does not divide into "
                f"num_attention_heads={self.num_attention_heads} equal heads; "
                f"nearest: {', '.join(map(str, sizes))}"
            )
