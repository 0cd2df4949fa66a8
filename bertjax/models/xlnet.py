"""XLNet (Yang et al. 2019): relative positions and segments, two streams, a memory.

As an encoder it has one stream. With a factorisation order in the batch (`prediction_order`), a
second stream starts at the predicted positions from a learned vector and never attends to the token
there. With a `memory_mask` in the batch, every layer also attends to its inputs in the previous
batch, for rows that continue it (`is_continuation`).
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from bertjax.constraints import (
    DropoutRate,
    Epsilon,
    InitStddev,
    NonNegativeInt,
    PositiveInt,
    check_module,
)
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.blocks import DroppingFeedForward, StreamBlock
from bertjax.layers.dense import ActivationName, get_precision, truncated_normal
from bertjax.layers.dropout import Dropout
from bertjax.layers.heads import last_token
from bertjax.layers.memory import Memory
from bertjax.layers.relative_attention import RelativeAttention, View, Views, distance_signals
from bertjax.layers.stacked_model import StackedModel
from bertjax.models.bert import EQUAL_HEADS
from bertjax.pretrainer import Encoded


class Model(StackedModel):
    """XLNet, with fields named as BERT's; the defaults are those of XLNet-base.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of the feed-forward nets.
      hidden_act: Activation of the feed-forward nets.
      hidden_dropout_prob: Dropout of embeddings, of distance embeddings, outputs and feed-forward
        nets.
      attention_probs_dropout_prob: Dropout of the attention weights.
      mem_len: T, length of the memory for batches with a `memory_mask`.
      clamp_len: Longest distance, to which longer ones are clipped; 0 for no limit.
      initializer_range: Initial standard deviation of all kernels and tables.
      layer_norm_eps: Epsilon of every LayerNorm.
    """

    vocab_size: PositiveInt = 32000
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072
    hidden_act: ActivationName = "gelu"
    hidden_dropout_prob: DropoutRate = 0.1
    attention_probs_dropout_prob: DropoutRate = 0.1
    mem_len: NonNegativeInt = 0
    clamp_len: NonNegativeInt = 0
    initializer_range: InitStddev = 0.02
    layer_norm_eps: Epsilon = 1e-12

    relations = (EQUAL_HEADS,)

    cls_last = True  # [CLS] ends a sequence: `runs/examples.py` acts accordingly

    def setup(self):
        check_module(self)
        precision, normal = get_precision(self.precision), truncated_normal(self.initializer_range)
        self.word_embeddings = self._table(self.vocab_size, "vocab")
        boxed = nn.with_logical_partitioning(normal, (None, None, "embed"))
        self.mask_embedding = self.param("mask_embedding", boxed, (1, 1, self.hidden_size))
        attention = RelativeAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            self.initializer_range,
            precision,
        )
        feed_forward = DroppingFeedForward(
            self.intermediate_size,
            self.hidden_act,
            self.hidden_dropout_prob,
            self.initializer_range,
            precision,
        )
        self.dropout = Dropout(self.hidden_dropout_prob)
        self.shared_dropout = Dropout(self.hidden_dropout_prob, by_rows=False)
        self.memory = Memory(self.mem_len, precision.activations)
        self.layers = self._stack(
            StreamBlock(attention, feed_forward, self.hidden_dropout_prob, self.layer_norm_eps),
            keep_hidden_states=self.mem_len > 0,
        )

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        embedded = self.dropout(self.word_embeddings(batch["input_ids"]), train=train)
        streams, targets = (embedded,), None
        if "prediction_order" in batch:
            targets = batch["mlm_positions"]
            shape = (*targets.shape, self.hidden_size)
            start = jnp.broadcast_to(self.mask_embedding.astype(embedded.dtype), shape)
            streams = (embedded, self.dropout(start, train=train))
        recall = self.memory.recall(batch, self.num_hidden_layers, self.hidden_size)
        views = self._views(batch, recall.mask, targets, train=train)
        outputs, states = self.layers(streams, views, train=train, layer_inputs=recall.states)
        if states is not None:
            states = jnp.concatenate([embedded[None], states[0]])
            self.memory.keep(batch, recall, states[:-1])
        sequence, *queries = (self.dropout(output, train=train) for output in outputs)
        return Encoded(
            sequence,
            hidden_states=tuple(states) if self.output_hidden_states else None,
            queries=queries[0] if queries else None,
            cls_state=last_token(sequence, masks.padding_mask(batch["attention_mask"])),
        )

    def _views(
        self,
        batch: Batch,
        memory_mask: Bool[Array, "B T"] | None,
        targets: Int[Array, "B P"] | None,
        *,
        train: bool,
    ) -> Views:
        """Masks and segments of the streams, from padding, factorisation order and memory."""
        size, length = batch["input_ids"].shape
        mask_BQL = jnp.broadcast_to(masks.from_batch(batch).array(), (size, 1, length, length))
        segments = batch.get("segment_ids", jnp.zeros((size, length), jnp.int32))
        if memory_mask is None:
            memory_mask = jnp.zeros((size, 0), bool)
        # Tokens of the memory belong to the first segment, as in the published code.
        key_segments = jnp.pad(segments, ((0, 0), (memory_mask.shape[1], 0)))

        def view(key_mask, query_segments, positions=None):
            memory_key_mask = jnp.broadcast_to(
                memory_mask[:, None, None], (*key_mask.shape[:3], memory_mask.shape[1])
            )
            mask = jnp.concatenate([memory_key_mask, key_mask], axis=-1)
            return View(mask, query_segments[:, :, None] != key_segments[:, None], positions)

        streams = (view(mask_BQL, segments),)
        if targets is not None:
            earlier, itself = masks.order_masks(batch["prediction_order"])
            rows = targets[:, None, :, None]
            query_mask = jnp.take_along_axis(mask_BQL & earlier, rows, axis=2)
            streams = (
                view(mask_BQL & (earlier | itself), segments),
                view(query_mask, jnp.take_along_axis(segments, targets, axis=1), targets),
            )
        keys = memory_mask.shape[1] + length
        signals = distance_signals(length, keys, self.hidden_size, self.clamp_len)
        return Views(streams, self.shared_dropout(jnp.asarray(signals), train=train))
