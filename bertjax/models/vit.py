"""ViT (Dosovitskiy et al. 2021): an image as a sequence of patches after a class token."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.constraints import (
    DropoutRate,
    Epsilon,
    InitStddev,
    PositiveInt,
    Relation,
    check_module,
)
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import FeedForward, PreNormBlock
from bertjax.layers.dense import (
    ActivationName,
    Dense,
    get_precision,
    truncated_normal,
)
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import LayerNorm
from bertjax.layers.heads import Pooler, PoolerCount
from bertjax.layers.stack import Stack
from bertjax.layers.stacked_model import StackedModel
from bertjax.models.bert import EQUAL_HEADS
from bertjax.pretrainer import Encoded


class Model(StackedModel):
    """Vision Transformer, with the fields of the published config; the defaults are ViT-Base's.

    Attributes:
      image_size: Height and width in pixels.
      patch_size: Height and width of a patch; divides `image_size`.
      num_channels: Channels of a pixel.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of the feed-forward nets.
      hidden_act: Activation of the feed-forward nets.
      hidden_dropout_prob: Dropout of embeddings and of the two outputs of each block.
      attention_probs_dropout_prob: Dropout of the attention weights.
      num_pooler_layers: 0: heads read the first token, as published; 1: a pooler, as in the
        `ViTModel` of transformers.
      initializer_range: Initial standard deviation of all kernels and tables.
      layer_norm_eps: Epsilon of every LayerNorm.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`).
    """

    image_size: PositiveInt = 224
    patch_size: PositiveInt = 16
    num_channels: PositiveInt = 3
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072
    hidden_act: ActivationName = "gelu"
    hidden_dropout_prob: DropoutRate = 0.1
    attention_probs_dropout_prob: DropoutRate = 0.0
    num_pooler_layers: PoolerCount = 0
    initializer_range: InitStddev = 0.02
    layer_norm_eps: Epsilon = 1e-6
    attention_kernel: KernelName = ""

    relations = (
        EQUAL_HEADS,
        Relation(
            ("image_size", "patch_size"),
            lambda side, patch: side % patch == 0,
            "image_size to divide into patches of patch_size pixels",
        ),
    )

    vocab_size = 0  # an image has no words

    @nn.compact
    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        check_module(self)
        embedded = self._embed(batch["pixel_values"])
        embedded = Dropout(self.hidden_dropout_prob)(embedded, train=train)
        everywhere = masks.padding(jnp.ones(embedded.shape[:2], bool))
        stack = Stack(
            self._block(),
            self.num_hidden_layers,
            remat=self.remat,
            unroll=self.unroll,
            keep_hidden_states=self.output_hidden_states,
            name="layers",
        )
        sequence, states = stack(embedded, everywhere, train=train)
        sequence = LayerNorm(self.layer_norm_eps, name="norm")(sequence)
        pooled = None
        if self.num_pooler_layers:
            pooled = Pooler(self.initializer_range, get_precision(self.precision), name="pooler")(
                sequence
            )
        return Encoded(sequence, pooled, None if states is None else (embedded, *states))

    def attend(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Raises `UserError`: there is no vocabulary."""
        raise UserError("model vit has no vocabulary to predict tokens of; use image_class")

    @property
    def embedding_size(self) -> int:
        """Width of the patch embeddings."""
        return self.hidden_size

    def _embed(self, images: Float[Array, "B Y X C"]) -> Float[Array, "B L D"]:
        """Embeddings of the class token and of the patches, row by row, with positions."""
        project = Dense(
            (self.hidden_size,),
            (None, "embed"),
            initializer_range=self.initializer_range,
            precision=get_precision(self.precision),
            name="patches",
        )
        x = project(self._patches(images))
        normal = truncated_normal(self.initializer_range)

        def table(name, *shape):
            axes = (*(None,) * (len(shape) - 1), "embed")
            return self.param(name, nn.with_logical_partitioning(normal, axes), shape)

        first = table("cls", 1, 1, self.hidden_size).astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(first, (len(x), 1, self.hidden_size)), x], axis=1)
        return x + table("positions", x.shape[1], self.hidden_size).astype(x.dtype)

    def _patches(self, images: Float[Array, "B Y X C"]) -> Float[Array, "B L E"]:
        expected = (self.image_size, self.image_size, self.num_channels)
        if images.shape[1:] != expected:
            size = " x ".join(map(str, images.shape[1:3]))
            raise UserError(
                f"images: got {size} pixels with {images.shape[3]} channels, expected "
                f"{self.image_size} x {self.image_size} with {self.num_channels}; resize them, or "
                "set config.model.image_size and num_channels"
            )
        side, size = self.image_size // self.patch_size, self.patch_size
        x = images.reshape(-1, side, size, side, size, self.num_channels)
        return x.transpose(0, 1, 3, 2, 4, 5).reshape(len(images), side * side, -1)

    def _block(self) -> PreNormBlock:
        precision = get_precision(self.precision)
        attention = SelfAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            self.initializer_range,
            precision,
            kernel=self.attention_kernel,
            parent=None,
        )
        feed_forward = FeedForward(
            self.intermediate_size,
            self.hidden_act,
            self.initializer_range,
            precision,
            parent=None,
        )
        return PreNormBlock(
            attention, feed_forward, self.hidden_dropout_prob, self.layer_norm_eps, parent=None
        )
