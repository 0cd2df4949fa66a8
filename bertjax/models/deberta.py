"""DeBERTa (He et al. 2021; v3: He et al. 2023): disentangled attention to content and position.

Versions 2 and 3, which have the same encoder. Attention reads relative positions. Absolute ones
enter at the masked tokens alone, in the enhanced mask decoder (section 3.2): the last layer,
applied again with its input plus position embeddings as the queries.

The convolution of the first layer of v2-xlarge and v2-xxlarge is not implemented.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.constraints import (
    DropoutRate,
    Epsilon,
    InitStddev,
    NonNegativeInt,
    NotEmpty,
    OneOf,
    PositiveInt,
    Relation,
    check_module,
    integer,
)
from bertjax.interfaces import Batch
from bertjax.layers import disentangled_attention, masks
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.dense import (
    ActivationName,
    Dense,
    get_precision,
    truncated_normal,
)
from bertjax.layers.disentangled_attention import (
    DisentangledAttention,
    PositionTerm,
    RelativePositions,
)
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import DisentangledEmbedding, Embedding, LayerNorm
from bertjax.layers.stacked_model import StackedModel
from bertjax.models.bert import EQUAL_HEADS, check_length
from bertjax.pretrainer import Encoded

LAYER_NORM = "layer_norm"
GDES = "gdes"
_TABLE = "encoder/word_embeddings/embedding"
_SHARED, _DELTA = (f"encoder/shared_embeddings/{part}/embedding" for part in ("generator", "delta"))


class Model(StackedModel):
    """DeBERTa, with the fields of its `config.json`; the defaults are those of DeBERTaV3-base.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of the feed-forward nets.
      hidden_act: Activation of the feed-forward nets and the prediction head.
      hidden_dropout_prob: Dropout of embeddings, of those of relative positions, and of the two
        outputs of each block.
      attention_probs_dropout_prob: Dropout of the attention weights.
      max_position_embeddings: Rows of the table of absolute positions, where there is one.
      type_vocab_size: Number of segment embeddings; 0 for none.
      embedding_size: E, the width of word, position and segment embeddings, projected to D; 0 for
        D, without a projection.
      pos_att_type: Terms of the attention scores in addition to content to content: "c2p", content
        to position, and "p2c", position to content.
      max_relative_positions: The longest distance that is distinguished; -1 or 0 for
        `max_position_embeddings`.
      position_buckets: Buckets of distances on either side, logarithmic from the middle on; -1 or 0
        for one relative position for each distance, as in DeBERTa v1.
      share_att_key: Whether relative positions are projected as the content is.
      norm_rel_ebd: "layer_norm" for a LayerNorm of the embeddings of relative positions, or "none".
      position_biased_input: Whether absolute positions are added to the word embeddings.
      mask_decoder_layers: Number of times that the enhanced mask decoder applies the last layer, 2
        in the released code; 0 for no decoder. Its output is `Encoded.queries`, at `mlm_positions`
        of the batch, or at all positions.
      embedding_sharing: Word embeddings that a generator shares (`objectives/generator.py`): "es",
        one table that both train; or "gdes", a table that the generator trains, and the difference
        from it that this encoder trains (`layers/embeddings.py`).
      initializer_range: Initial standard deviation of all kernels and tables.
      layer_norm_eps: Epsilon of every LayerNorm.
    """

    vocab_size: PositiveInt = 128100
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072
    hidden_act: ActivationName = "gelu"
    hidden_dropout_prob: DropoutRate = 0.1
    attention_probs_dropout_prob: DropoutRate = 0.1
    max_position_embeddings: PositiveInt = 512
    type_vocab_size: NonNegativeInt = 0
    embedding_size: NonNegativeInt = 0
    pos_att_type: Annotated[tuple[PositionTerm, ...], NotEmpty()] = ("p2c", "c2p")
    max_relative_positions: Annotated[int, integer(-1)] = -1
    position_buckets: Annotated[int, integer(-1)] = 256
    share_att_key: bool = True
    norm_rel_ebd: Annotated[str, OneOf(("none", LAYER_NORM))] = LAYER_NORM
    position_biased_input: bool = False
    mask_decoder_layers: NonNegativeInt = 0
    embedding_sharing: Annotated[str, OneOf(("es", GDES))] = "es"
    initializer_range: InitStddev = 0.02
    layer_norm_eps: Epsilon = 1e-7

    array_sums: ClassVar[Mapping[str, tuple[str, ...]]] = {
        _TABLE: (_SHARED, _DELTA),
        _SHARED: (_TABLE,),
    }
    """Arrays of a model that starts from one with the other `embedding_sharing`."""

    relations = (
        EQUAL_HEADS,
        Relation(
            ("pos_att_type",),
            lambda terms: len(set(terms)) == len(terms),
            "each term once",
        ),
        Relation(
            ("position_buckets", "max_relative_positions", "max_position_embeddings"),
            lambda buckets, max_distance, rows: (
                buckets < 1 or 1 < buckets < 2 * (_max_distance(max_distance, rows) - 1)
            ),
            "position_buckets from 2 to 2 * max_relative_positions - 3, or -1",
        ),
        Relation(
            ("mask_decoder_layers", "embedding_size", "hidden_size"),
            lambda layers, narrow, width: not layers or narrow in (0, width),
            "embedding_size=0 or hidden_size with a mask decoder, which adds position embeddings "
            "to hidden states",
        ),
    )

    def __post_init__(self):
        # Before the module is frozen: heads read the field.
        self.embedding_size = self.embedding_size or self.hidden_size
        super().__post_init__()

    def setup(self):
        check_module(self)
        precision, normal = get_precision(self.precision), truncated_normal(self.initializer_range)
        if self.embedding_sharing == GDES:
            size = self.vocab_size, self.embedding_size
            self.shared_embeddings = DisentangledEmbedding(*size, normal, precision)
        else:
            self.word_embeddings = self._table(self.vocab_size, "vocab")
        self.position_embeddings = self._table(self.max_position_embeddings)
        if self.type_vocab_size:
            self.segment_embeddings = self._table(self.type_vocab_size)
        self.embeddings_project = Dense(
            (self.hidden_size,),
            (None, "embed"),
            use_bias=False,
            initializer_range=self.initializer_range,
            precision=precision,
        )
        self.embeddings_norm = LayerNorm(self.layer_norm_eps)
        self.dropout = Dropout(self.hidden_dropout_prob)
        self.relative_embeddings = Embedding(
            2 * self._num_relative, self.hidden_size, (None, "embed"), normal, precision
        )
        self.relative_norm = LayerNorm(self.layer_norm_eps)
        self.layers = self._stack(self._block(), keep_hidden_states=self.mask_decoder_layers > 0)

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        return self.encode(self._words(batch["input_ids"]), batch, train=train)

    def embed(self, batch: Batch, *, train: bool) -> Float[Array, "B L E"]:
        """Word embeddings [B L E] that a generator shares and trains."""
        words = self._words.shared if self.embedding_sharing == GDES else self._words
        return words(batch["input_ids"])

    def encode(self, embedded: Float[Array, "B L E"], batch: Batch, *, train: bool) -> Encoded:
        """Encodes word embeddings, which may come from another model."""
        x = self._embeddings(embedded, batch, train=train)
        positions = self._relative_positions(batch)
        sequence, states = self.layers(x, positions, train=train)
        states, queries = None if states is None else (x, *states), None
        if self.mask_decoder_layers:
            queries = self._decode_masked(states[-2], positions, batch, train=train)
        hidden_states = states if self.output_hidden_states else None
        return Encoded(sequence, hidden_states=hidden_states, queries=queries)

    def attend(self, hidden: Float[Array, "*lead E"]) -> Float[Array, "*lead V"]:
        """Logits over the vocabulary, by the tied word embeddings, those that are shared."""
        return self._words.attend(hidden)

    @property
    def _words(self) -> Embedding | DisentangledEmbedding:
        return self.shared_embeddings if self.embedding_sharing == GDES else self.word_embeddings

    @property
    def _num_relative(self) -> int:
        """k, half the number of relative positions (equation 3)."""
        if self.position_buckets > 0:
            return self.position_buckets
        return _max_distance(self.max_relative_positions, self.max_position_embeddings)

    def _embeddings(
        self, words: Float[Array, "B L E"], batch: Batch, *, train: bool
    ) -> Float[Array, "B L D"]:
        x = words
        if self.position_biased_input:
            x = x + self.position_embeddings(self._position_ids(batch))
        if self.type_vocab_size:
            x = x + self.segment_embeddings(
                batch.get("segment_ids", jnp.zeros_like(batch["input_ids"]))
            )
        if self.embedding_size != self.hidden_size:
            x = self.embeddings_project(x)
        return self.dropout(self.embeddings_norm(x), train=train)

    def _position_ids(self, batch: Batch) -> Int[Array, "#B L"]:
        length = batch["input_ids"].shape[1]
        check_length(length, self.max_position_embeddings)
        return batch.get("position_ids", jnp.arange(length)[None])

    def _relative_positions(self, batch: Batch) -> RelativePositions:
        """Mask, and the embeddings of the relative positions that a sequence has."""
        mask = masks.from_batch(batch)
        length = batch["input_ids"].shape[1]
        max_distance = _max_distance(self.max_relative_positions, self.max_position_embeddings)
        rows = disentangled_attention.relative_positions(
            np.arange(length, -length - 1, -1), self.position_buckets, max_distance
        )
        embeddings = self.relative_embeddings(jnp.arange(rows.min(), rows.max() + 1))
        if self.norm_rel_ebd == LAYER_NORM:
            embeddings = self.relative_norm(embeddings)
        return RelativePositions(mask, embeddings, rows - rows.min())

    def _decode_masked(
        self,
        hidden: Float[Array, "B L D"],
        positions: RelativePositions,
        batch: Batch,
        *,
        train: bool,
    ) -> Float[Array, "B P D"]:
        """The enhanced mask decoder, applied to the input of the last layer."""
        size, length = batch["input_ids"].shape
        everywhere = jnp.broadcast_to(jnp.arange(length), (size, length))
        targets = batch.get("mlm_positions", everywhere)
        position_ids = jnp.broadcast_to(self._position_ids(batch), (size, length))
        absolute = self.position_embeddings(jnp.take_along_axis(position_ids, targets, axis=1))
        queries = jnp.take_along_axis(hidden, targets[..., None], axis=1) + absolute
        positions, block = positions.replace(queries=targets), self._block()
        stacked = nn.meta.unbox(self.layers.variables["params"]["block"])
        last = {"params": jax.tree.map(lambda leaf: leaf[-1], stacked)}
        for _ in range(self.mask_decoder_layers):
            rngs = {"dropout": self.make_rng("dropout")} if self.has_rng("dropout") else {}
            queries = block.apply(last, queries, positions, hidden, train=train, rngs=rngs)
        return queries

    def _block(self) -> PostNormBlock:
        """A layer, without a parent: the mask decoder applies it with parameters of the stack."""
        precision = get_precision(self.precision)
        attention = DisentangledAttention(
            self.num_attention_heads,
            self.pos_att_type,
            self.share_att_key,
            self.attention_probs_dropout_prob,
            self.hidden_dropout_prob,
            self.initializer_range,
            precision,
            parent=None,
        )
        feed_forward = FeedForward(
            self.intermediate_size,
            self.hidden_act,
            self.initializer_range,
            precision,
            parent=None,
        )
        dropout, epsilon = self.hidden_dropout_prob, self.layer_norm_eps
        return PostNormBlock(attention, feed_forward, dropout, epsilon, parent=None)


def _max_distance(max_relative_positions: int, max_position_embeddings: int) -> int:
    """The longest distance that is distinguished."""
    return max_relative_positions if max_relative_positions > 0 else max_position_embeddings
