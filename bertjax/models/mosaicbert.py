"""MosaicBERT's encoder (Portes et al. 2023, section 3): BERT with ALiBi and GeGLU.

Post-norm blocks as in BERT. Attention has symmetric linear biases in place of position embeddings,
so that sequences may have any length. Details are those of the released code. Its FlashAttention,
unpadding and LayerNorm in low precision do not change the mathematics: `data.format` and the
compiler take their place.
"""

import flax.linen as nn
from jaxtyping import Array, Float

from bertjax.constraints import DropoutRate, Epsilon, InitStddev, PositiveInt, check_module
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import multiply_activated
from bertjax.layers.dense import (
    ActivationName,
    Dense,
    Precision,
    activation,
    get_precision,
)
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import LayerNorm
from bertjax.layers.masks import Mask
from bertjax.layers.position_encodings import Alibi
from bertjax.layers.stacked_model import StackedModel
from bertjax.models.bert import EQUAL_HEADS, Embeddings
from bertjax.pretrainer import Encoded


class GatedFeedForward(nn.Module):
    """Gated linear unit with a bias at its output alone, and dropout before its last map.

    Attributes:
      intermediate_size: F, the width of each half.
      hidden_act: Name of the activation of the gate.
      dropout_rate: Dropout of the product of both halves.
      initializer_range: Initial standard deviation of the kernels.
      precision: Types of operands and results.
    """

    intermediate_size: int
    hidden_act: str = "gelu"
    dropout_rate: float = 0.1
    initializer_range: float = 0.02
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], *, train: bool) -> Float[Array, "B L D"]:
        def dense(features, axes, name, *, use_bias):
            return Dense(
                (features,),
                axes,
                use_bias=use_bias,
                initializer_range=self.initializer_range,
                precision=self.precision,
                name=name,
            )

        size, axes = self.intermediate_size, ("embed", "mlp")
        hidden = dense(size, axes, "intermediate", use_bias=False)(x)
        gate = dense(size, axes, "gate", use_bias=False)(x)
        product = multiply_activated(activation(self.hidden_act), hidden, gate)
        product = Dropout(self.dropout_rate)(product, train=train)
        return dense(x.shape[-1], ("mlp", "embed"), "output", use_bias=True)(product)


class Block(nn.Module):
    """Post-norm block whose feed-forward net has its own dropout, and none of its output.

    Attributes:
      attention: Self-attention.
      feed_forward: Feed-forward net.
      dropout_rate: Dropout of the attention's output.
      layer_norm_eps: Epsilon of both LayerNorms.
    """

    attention: SelfAttention
    feed_forward: GatedFeedForward
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-12

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], mask: Mask, *, train: bool
    ) -> Float[Array, "B L D"]:
        attention_output = Dropout(self.dropout_rate)(
            self.attention(x, mask, train=train), train=train
        )
        x = LayerNorm(self.layer_norm_eps, name="attention_norm")(x + attention_output)
        update = self.feed_forward(x, train=train)
        return LayerNorm(self.layer_norm_eps, name="feed_forward_norm")(x + update)


class Model(StackedModel):
    """MosaicBERT encoder; the defaults are those of MosaicBERT-Base.

    Attributes:
      vocab_size: V, the size of the vocabulary, a multiple of 64 for fast matmuls.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of each half of the gated feed-forward nets.
      hidden_act: Activation of the feed-forward nets and the prediction head.
      hidden_dropout_prob: Dropout of embeddings, of the attention's output and inside the
        feed-forward nets.
      attention_probs_dropout_prob: Dropout of the attention weights.
      type_vocab_size: Number of segment embeddings; 1: all segments share it.
      initializer_range: Initial standard deviation of kernels and tables.
      layer_norm_eps: Epsilon of every LayerNorm.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`); none of the
        fused ones adds biases.
    """

    vocab_size: PositiveInt = 30528
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072
    hidden_act: ActivationName = "gelu"
    hidden_dropout_prob: DropoutRate = 0.1
    attention_probs_dropout_prob: DropoutRate = 0.0
    type_vocab_size: PositiveInt = 2
    initializer_range: InitStddev = 0.02
    layer_norm_eps: Epsilon = 1e-12
    attention_kernel: KernelName = ""

    relations = (EQUAL_HEADS,)

    def setup(self):
        check_module(self)
        self.word_embeddings = self._table(self.vocab_size, "vocab")
        self.segment_embeddings = self._table(self.type_vocab_size)
        self.embeddings = Embeddings(
            self.word_embeddings,
            None,
            self.segment_embeddings,
            self.layer_norm_eps,
            self.hidden_dropout_prob,
        )
        self.layers = self._stack(self._block())

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        embedded = self.embeddings(batch, train=train)
        sequence, states = self.layers(embedded, masks.from_batch(batch), train=train)
        return Encoded(sequence, hidden_states=None if states is None else (embedded, *states))

    def _block(self) -> Block:
        precision = get_precision(self.precision)
        attention = SelfAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            self.initializer_range,
            precision,
            kernel=self.attention_kernel,
            alibi=Alibi(self.num_attention_heads),
        )
        feed_forward = GatedFeedForward(
            self.intermediate_size,
            self.hidden_act,
            self.hidden_dropout_prob,
            self.initializer_range,
            precision,
        )
        return Block(attention, feed_forward, self.hidden_dropout_prob, self.layer_norm_eps)
