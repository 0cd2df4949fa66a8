"""ALBERT's encoder (Lan et al. 2020): BERT with factorised embeddings and shared layers.

Word, position and segment embeddings have width E and are projected to D (section 3.1, factorised
embeddings); all layers, or their attention or feed-forward halves, share parameters (cross-layer
parameter sharing).
"""

from typing import Annotated

from bertjax.constraints import (
    DropoutRate,
    Epsilon,
    InitStddev,
    NonNegativeInt,
    OneOf,
    PositiveInt,
    Relation,
    check_module,
)
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.dense import (
    ActivationName,
    Dense,
    Initializer,
    get_precision,
    truncated_normal,
)
from bertjax.layers.embeddings import Embedding, PositionInitializer, position_initializer
from bertjax.layers.grouped_stack import GroupedStack
from bertjax.layers.heads import Pooler, PoolerCount
from bertjax.layers.stack import SharedStack
from bertjax.layers.stacked_model import StackedModel
from bertjax.models import bert
from bertjax.pretrainer import Encoded

_ATTENTION = ("attention", "attention_norm")
_FEED_FORWARD = ("feed_forward", "feed_forward_norm")
SHARING = {
    "all": (*_ATTENTION, *_FEED_FORWARD),
    "attention": _ATTENTION,
    "feed_forward": _FEED_FORWARD,
    "none": (),
}

SharingName = Annotated[str, OneOf(SHARING)]


class Model(StackedModel):
    """ALBERT encoder, with the fields of `albert_config.json`; the defaults are ALBERT-base's.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      embedding_size: E; if it equals `hidden_size`, there is no projection.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of the feed-forward nets.
      hidden_act: Activation of the feed-forward nets and the prediction head. The published code
        calls the tanh approximation of GELU "gelu".
      hidden_dropout_prob: Dropout of embeddings and of the two outputs of each block.
      attention_probs_dropout_prob: Dropout of the attention weights.
      max_position_embeddings: Longest sequence.
      type_vocab_size: Number of segment kinds.
      num_pooler_layers: 1, or 0 for a model without one: `Encoded.pooled` is None then.
      initializer_range: Initial standard deviation of all kernels and tables.
      position_initializer: "normal" as published, or "sinusoidal" (`layers/embeddings.py`).
      layer_norm_eps: Epsilon of every LayerNorm.
      sharing: Which submodules all layers share: a name in `SHARING` (tables 3 and 4).
      num_hidden_groups: G, groups into which the layers are divided: all layers of a group share
        all parameters; must be 0 unless `sharing` is "all". 0 uses `sharing` alone.
      inner_group_num: I, blocks that each layer applies one after the other, which makes N I blocks
        in all; 0 for 1.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`).
    """

    vocab_size: PositiveInt = 30000
    embedding_size: PositiveInt = 128
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072
    hidden_act: ActivationName = "gelu_new"
    hidden_dropout_prob: DropoutRate = 0.1
    attention_probs_dropout_prob: DropoutRate = 0.1
    max_position_embeddings: PositiveInt = 512
    type_vocab_size: PositiveInt = 2
    num_pooler_layers: PoolerCount = 1
    initializer_range: InitStddev = 0.02
    position_initializer: PositionInitializer = "normal"
    layer_norm_eps: Epsilon = 1e-12
    sharing: SharingName = "all"
    num_hidden_groups: NonNegativeInt = 0
    inner_group_num: NonNegativeInt = 0
    attention_kernel: KernelName = ""

    reads_position_ids = True  # adds absolute positions: `tasks/glue/dataset.py` needs them

    relations = (
        bert.EQUAL_HEADS,
        Relation(
            ("num_hidden_groups", "num_hidden_layers"),
            lambda groups, layers: groups <= layers,
            "at most one group for each layer",
        ),
        Relation(
            ("sharing", "num_hidden_groups", "inner_group_num"),
            lambda sharing, groups, inner: sharing == "all" or not (groups or inner),
            "sharing='all' where num_hidden_groups or inner_group_num is set",
            "set these to 0",
        ),
    )

    def setup(self):
        check_module(self)
        positions = position_initializer(self.position_initializer, self.initializer_range)
        self.word_embeddings = self._table(self.vocab_size, "vocab")
        self.position_embeddings = self._table(self.max_position_embeddings, initializer=positions)
        self.segment_embeddings = self._table(self.type_vocab_size)
        self.embeddings = bert.Embeddings(
            self.word_embeddings,
            self.position_embeddings,
            self.segment_embeddings,
            self.layer_norm_eps,
            self.hidden_dropout_prob,
        )
        if self.embedding_size != self.hidden_size:
            self.embedding_projection = Dense(
                (self.hidden_size,),
                (None, "embed"),
                initializer_range=self.initializer_range,
                precision=get_precision(self.precision),
            )
        options = {
            "remat": self.remat,
            "unroll": self.unroll,
            "keep_hidden_states": self.output_hidden_states,
        }
        self.layers = (
            GroupedStack(
                self._block(),
                self.num_hidden_layers,
                self.num_hidden_groups or 1,
                self.inner_group_num or 1,
                **options,
            )
            if self.num_hidden_groups or self.inner_group_num
            else SharedStack(
                self._block(), self.num_hidden_layers, SHARING[self.sharing], **options
            )
        )
        self.pooler = Pooler(self.initializer_range, get_precision(self.precision))

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        bert.check_length(batch["input_ids"].shape[1], self.max_position_embeddings)
        embedded = self.embeddings(batch, train=train)
        if self.embedding_size != self.hidden_size:
            embedded = self.embedding_projection(embedded)
        sequence, states = self.layers(embedded, masks.from_batch(batch), train=train)
        hidden_states = None if states is None else (embedded, *states)
        pooled = self.pooler(sequence) if self.num_pooler_layers else None
        return Encoded(sequence, pooled, hidden_states)

    def _table(
        self, rows: int, axis: str | None = None, initializer: Initializer | None = None
    ) -> Embedding:
        # Not sharded over its width, which is a fraction of the layers'.
        normal = initializer or truncated_normal(self.initializer_range)
        precision = get_precision(self.precision)
        return Embedding(rows, self.embedding_size, (axis, None), normal, precision)

    def _block(self) -> PostNormBlock:
        precision = get_precision(self.precision)
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
        return PostNormBlock(attention, feed_forward, self.hidden_dropout_prob, self.layer_norm_eps)
