"""BERT's encoder (Devlin et al. 2019): embeddings, a stack of post-norm blocks, a pooler.

RoBERTa, SpanBERT, K-BERT, DistilBERT, TinyBERT and both towers of ELECTRA are this module with
other hyperparameters.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.constraints import (
    DropoutRate,
    Epsilon,
    InitStddev,
    NonNegativeInt,
    PositiveInt,
    Relation,
    check_module,
)
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import masks, width_scaling
from bertjax.layers.attention import SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.dense import (
    ActivationName,
    Dense,
    Precision,
    add_bias,
    get_precision,
)
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import (
    Embedding,
    LayerNorm,
    PositionInitializer,
    position_initializer,
)
from bertjax.layers.heads import Pooler, PoolerCount
from bertjax.layers.stacked_model import StackedModel
from bertjax.pretrainer import Encoded


def check_length(length: int, max_position_embeddings: int, position_offset: int = 0) -> None:
    """Checks that a sequence does not exceed the position embeddings.

    Raises:
      UserError: the sequence is longer than the position embeddings.
    """
    if position_offset + length > max_position_embeddings:
        unused = f" less position_offset={position_offset}" if position_offset else ""
        raise UserError(
            f"a sequence of {length} tokens exceeds max_position_embeddings="
            f"{max_position_embeddings}{unused}: shorten it or raise the limit"
        )


def _nearest_widths(hidden_size: int, num_attention_heads: int) -> str:
    low = hidden_size // num_attention_heads * num_attention_heads
    sizes = [size for size in (low, low + num_attention_heads) if size]
    return f"nearest: {', '.join(map(str, sizes))}"


EQUAL_HEADS = Relation(
    ("hidden_size", "num_attention_heads"),
    lambda width, heads: width % heads == 0,
    "hidden_size to divide into num_attention_heads equal heads",
    _nearest_widths,
)


class Embeddings(nn.Module):
    """Sum of word, position and segment vectors, then LayerNorm and dropout (figure 2)."""

    words: Embedding
    positions: nn.Module | None
    segments: Embedding | None
    layer_norm_eps: float
    dropout_rate: float
    position_offset: int = 0

    @nn.compact
    def __call__(self, batch: Batch, *, train: bool) -> Float[Array, "B L E"]:
        input_ids = batch["input_ids"]
        x = self.words(input_ids)
        if self.positions is not None:
            if "position_ids" in batch:
                x = x + self.positions(batch["position_ids"] + self.position_offset)
            else:
                positions = jnp.arange(input_ids.shape[1]) + self.position_offset
                x = add_bias(x, self.positions(positions))
        if self.segments is not None:
            segment_ids = batch.get("segment_ids", jnp.zeros_like(input_ids))
            if self.segments.num_embeddings == 1:
                # With one segment embedding, as in RoBERTa, only separators mark the segments.
                segment_ids = jnp.zeros_like(segment_ids)
            x = x + self.segments(segment_ids)
        x = LayerNorm(self.layer_norm_eps, name="norm")(x)
        return Dropout(self.dropout_rate)(x, train=train)


class Model(StackedModel):
    """BERT encoder, with the fields of `bert_config.json`; the defaults are those of BERT-base.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of the feed-forward nets.
      hidden_act: Activation of the feed-forward nets and the prediction head.
      hidden_dropout_prob: Dropout of embeddings and of the two outputs of each block.
      attention_probs_dropout_prob: Dropout of the attention weights.
      max_position_embeddings: Rows of the position table: `position_offset` plus the longest
        sequence.
      type_vocab_size: Number of segment embeddings; 1: all segments share it; 0: no segment
        embeddings, as in DistilBERT.
      embedding_size: E, the width of word, position and segment embeddings, projected to D as in
        ELECTRA-small; 0 for D, without a projection.
      num_pooler_layers: 1, or 0 as in ELECTRA and DistilBERT: `Encoded.pooled` is None then.
      initializer_range: Initial standard deviation of all kernels and tables.
      position_initializer: "normal" as published, or "sinusoidal" (`layers/embeddings.py`), which
        helps short runs; positions are learned either way.
      position_offset: Row of the first position; 2 in RoBERTa, whose first rows are unused.
      layer_norm_eps: Epsilon of every LayerNorm.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`).
      mup_base_width: `hidden_size` of the base model of the maximal update parametrisation, on
        which the learning rate was tuned (`layers/width_scaling.py`); 0 for none.
      mup_base_heads: `num_attention_heads` of the base model; 0 for heads of the same width.
    """

    vocab_size: PositiveInt = 30522
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072
    hidden_act: ActivationName = "gelu"
    hidden_dropout_prob: DropoutRate = 0.1
    attention_probs_dropout_prob: DropoutRate = 0.1
    max_position_embeddings: PositiveInt = 512
    type_vocab_size: NonNegativeInt = 2
    embedding_size: NonNegativeInt = 0
    num_pooler_layers: PoolerCount = 1
    initializer_range: InitStddev = 0.02
    position_initializer: PositionInitializer = "normal"
    position_offset: NonNegativeInt = 0
    layer_norm_eps: Epsilon = 1e-12
    attention_kernel: KernelName = ""
    mup_base_width: NonNegativeInt = 0
    mup_base_heads: NonNegativeInt = 0

    reads_position_ids = True  # adds absolute positions: `tasks/glue/dataset.py` needs them

    relations = (
        EQUAL_HEADS,
        width_scaling.BASE_HEADS,
        Relation(
            ("position_offset", "max_position_embeddings"),
            lambda offset, rows: offset < rows,
            "position_offset below max_position_embeddings",
            "raise max_position_embeddings",
        ),
    )

    def __post_init__(self):
        # Before the module is frozen: heads read the field.
        self.embedding_size = self.embedding_size or self.hidden_size
        super().__post_init__()

    def setup(self):
        check_module(self)
        precision = get_precision(self.precision)
        self.word_embeddings = self._table(self.vocab_size, "vocab")
        positions = position_initializer(self.position_initializer, self.initializer_range)
        self.position_embeddings = self._table(self.max_position_embeddings, initializer=positions)
        self.segment_embeddings = (
            self._table(self.type_vocab_size) if self.type_vocab_size else None
        )
        self.embeddings = Embeddings(
            self.word_embeddings,
            self.position_embeddings,
            self.segment_embeddings,
            self.layer_norm_eps,
            self.hidden_dropout_prob,
            self.position_offset,
        )
        self.embeddings_project = Dense(
            (self.hidden_size,),
            (None, "embed"),
            initializer_range=width_scaling.hidden_stddev(self),
            precision=precision,
        )
        self.layers = self._stack(self._block(precision))
        self.pooler = Pooler(width_scaling.hidden_stddev(self), precision)

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        return self.encode(self.embed(batch, train=train), batch, train=train)

    def embed(self, batch: Batch, *, train: bool) -> Float[Array, "B L E"]:
        """Embeddings of the tokens, [B L E], before the projection to D."""
        length = batch["input_ids"].shape[1]
        check_length(length, self.max_position_embeddings, self.position_offset)
        return self.embeddings(batch, train=train)

    def encode(self, embedded: Float[Array, "B L E"], batch: Batch, *, train: bool) -> Encoded:
        """Encodes embedded tokens, which may come from another model."""
        if embedded.shape[-1] != self.hidden_size:
            embedded = self.embeddings_project(embedded)
        sequence, states = self.layers(embedded, masks.from_batch(batch), train=train)
        hidden_states = None if states is None else (embedded, *states)
        pooled = self.pooler(sequence) if self.num_pooler_layers else None
        return Encoded(sequence, pooled, hidden_states)

    def attention_scores(
        self, hidden: Float[Array, "B L D"], layer: int, batch: Batch
    ) -> Float[Array, "B H L L"]:
        """Attention scores of a layer with input `hidden`, before the softmax; 0 where masked.

        They are recomputed: returning them from the forward pass would keep those of every layer.
        """
        stacked = nn.meta.unbox(self.layers.variables["params"]["block"]["attention"])
        own = {"params": jax.tree.map(lambda leaf: leaf[layer], stacked)}
        attention = self._attention(get_precision(self.precision), parent=None)
        return attention.apply(own, hidden, masks.from_batch(batch), method="scores")

    def attend(self, hidden: Float[Array, "*lead E"]) -> Float[Array, "*lead V"]:
        """Logits over the vocabulary, by the tied word embeddings."""
        return self.word_embeddings.attend(width_scaling.scale_output(self, hidden))

    def _attention(self, precision: Precision, **options) -> SelfAttention:
        return SelfAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            width_scaling.hidden_stddev(self),
            precision,
            kernel=self.attention_kernel,
            query_scale=width_scaling.query_scale(self),
            **options,
        )

    def _block(self, precision: Precision) -> PostNormBlock:
        attention = self._attention(precision)
        feed_forward = FeedForward(
            self.intermediate_size,
            self.hidden_act,
            width_scaling.hidden_stddev(self),
            precision,
        )
        return PostNormBlock(attention, feed_forward, self.hidden_dropout_prob, self.layer_norm_eps)
