"""Transformer (Vaswani et al. 2017): an encoder, and a decoder that attends to it.

Source, target and output layer share one embedding table (section 3.4). Without
`decoder_input_ids`, the decoder reads the source too, and tasks use the vector of its last token,
as in BART (Lewis et al. 2020, section 3.1).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.constraints import DropoutRate, Epsilon, InitStddev, PositiveInt, check_module
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.attention import CrossAttention, KeysValues, SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import DecoderBlock, FeedForward, LayerCache, PostNormBlock, Source
from bertjax.layers.dense import (
    ActivationName,
    Precision,
    get_precision,
)
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import sinusoids
from bertjax.layers.heads import last_token
from bertjax.layers.stack import Stack
from bertjax.layers.stacked_model import StackedModel
from bertjax.models.bert import EQUAL_HEADS
from bertjax.pretrainer import Encoded


class DecoderState(NamedTuple):
    """State of autoregressive decoding.

    Attributes:
      caches: Cache of each layer.
      mask: Padding mask of the source.
      length: Number of decoded tokens.
    """

    caches: tuple[LayerCache, ...]
    mask: Bool[Array, "B M"]
    length: Int[Array, " B"]


class Model(StackedModel):
    """Transformer encoder-decoder, with fields named as BERT's; the defaults are the base model's.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, of the encoder and of the decoder.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of the feed-forward nets.
      hidden_act: Activation of the feed-forward nets.
      hidden_dropout_prob: Dropout of embeddings and of the outputs of attention and feed-forward.
      attention_probs_dropout_prob: Dropout of the attention weights.
      initializer_range: Initial standard deviation of all kernels and of the table; D ** -0.5
        is Glorot's for square kernels, and the published value for the table.
      layer_norm_eps: Epsilon of every LayerNorm.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`).
    """

    vocab_size: PositiveInt = 37000
    hidden_size: PositiveInt = 512
    num_hidden_layers: PositiveInt = 6
    num_attention_heads: PositiveInt = 8
    intermediate_size: PositiveInt = 2048
    hidden_act: ActivationName = "relu"
    hidden_dropout_prob: DropoutRate = 0.1
    attention_probs_dropout_prob: DropoutRate = 0.0
    initializer_range: InitStddev = 512**-0.5
    layer_norm_eps: Epsilon = 1e-6
    attention_kernel: KernelName = ""

    relations = (EQUAL_HEADS,)

    supports_packing = False  # its positions count from the start of the row

    def setup(self):
        check_module(self)
        precision = get_precision(self.precision)
        self.word_embeddings = self._table(self.vocab_size, "vocab")
        self.dropout = Dropout(self.hidden_dropout_prob)
        self.layers = self._stack(self._encoder_block(precision))
        self.decoder_layers = Stack(
            self._decoder_block(precision),
            self.num_hidden_layers,
            remat=self.remat,
            unroll=self.unroll,
        )

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        embedded = self._embed(batch["input_ids"], train=train)
        memory, states = self.layers(embedded, masks.from_batch(batch), train=train)
        padding_mask = masks.padding_mask(batch["attention_mask"])
        ids = batch.get("decoder_input_ids", batch["input_ids"])
        decoder_input = self._embed(
            ids, batch.get("decoder_positions"), memory.shape[1], train=train
        )
        source = Source(masks.causal(ids.shape[1]), memory, masks.padding(padding_mask))
        decoded, _ = self.decoder_layers(decoder_input, source, train=train)
        return Encoded(
            memory,
            hidden_states=None if states is None else (embedded, *states),
            cls_state=None if "decoder_input_ids" in batch else last_token(decoded, padding_mask),
            decoded=decoded,
        )

    def begin(self, batch: Batch, length: int) -> DecoderState:
        """Encodes the source; returns the state for decoding up to `length` tokens."""
        embedded = self._embed(batch["input_ids"], train=False)
        memory, _ = self.layers(embedded, masks.from_batch(batch), train=False)
        size, heads = len(memory), self.num_attention_heads
        zeros = jnp.zeros((size, length, heads, self.hidden_size // heads), memory.dtype)
        caches = tuple(
            LayerCache(KeysValues(zeros, zeros), block(memory, method="read"))
            for block in self._decoder_blocks()
        )
        padding_mask = masks.padding_mask(batch["attention_mask"])
        return DecoderState(caches, padding_mask, jnp.zeros(size, jnp.int32))

    def step(
        self, state: DecoderState, tokens: Int[Array, " B"]
    ) -> tuple[Float[Array, "B V"], DecoderState]:
        """Decodes one step: appends a token to each row and returns logits of the next."""
        position, max_length = state.length[0], state.caches[0].past.key.shape[1]
        visible = masks.padding((jnp.arange(max_length) <= position)[None])
        x = self._embed(tokens[:, None], position[None, None], max_length, train=False)
        caches = []
        for block, cache in zip(self._decoder_blocks(), state.caches, strict=True):
            x, past = block(x, cache, position, visible, masks.padding(state.mask), method="step")
            caches.append(cache._replace(past=past))
        scores = self.attend(x[:, 0]).astype(jnp.float32)
        return scores, DecoderState(tuple(caches), state.mask, state.length + 1)

    def _embed(
        self,
        ids: Int[Array, "B L"],
        positions: Int[Array, "#B L"] | None = None,
        max_length: int = 0,
        *,
        train: bool,
    ) -> Float[Array, "B L D"]:
        """Word embeddings, scaled by sqrt(D), plus positions (sections 3.4 and 3.5)."""
        words = self.word_embeddings(ids) * self.hidden_size**0.5
        max_length = ids.shape[1] if positions is None else max_length
        signals = jnp.asarray(sinusoids(max_length, self.hidden_size), words.dtype)
        signals = signals[None] if positions is None else signals[positions]
        return self.dropout(words + signals, train=train)

    def _decoder_blocks(self) -> list[Callable]:
        """Each layer of the decoder as a function; a single token needs no scan over layers."""
        block = self._decoder_block(get_precision(self.precision), parent=None)
        stacked = nn.meta.unbox(self.decoder_layers.variables["params"]["block"])

        def layer(number: int) -> Callable:
            params = jax.tree.map(lambda x: x[number], stacked)
            return functools.partial(block.apply, {"params": params})

        return [layer(number) for number in range(self.num_hidden_layers)]

    def _encoder_block(self, precision: Precision) -> PostNormBlock:
        attention = SelfAttention(*self._attention_fields(precision), kernel=self.attention_kernel)
        return PostNormBlock(
            attention,
            self._feed_forward(precision),
            self.hidden_dropout_prob,
            self.layer_norm_eps,
        )

    def _decoder_block(self, precision: Precision, **options) -> DecoderBlock:
        fields = self._attention_fields(precision)
        return DecoderBlock(
            CrossAttention(*fields, self.attention_kernel, **options),
            CrossAttention(*fields, self.attention_kernel, **options),
            self._feed_forward(precision, **options),
            self.hidden_dropout_prob,
            self.layer_norm_eps,
            **options,
        )

    def _attention_fields(self, precision: Precision) -> tuple:
        return (
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            self.initializer_range,
            precision,
        )

    def _feed_forward(self, precision: Precision, **options) -> FeedForward:
        fields = (self.intermediate_size, self.hidden_act, self.initializer_range, precision)
        return FeedForward(*fields, **options)
