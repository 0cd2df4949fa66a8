"""ModernBERT's encoder (Warner et al. 2024, section 2.1): rotary positions, local attention, GeGLU.

Pre-norm blocks without biases. Every third layer has global attention, the others local attention,
with another theta of the rotary embeddings. The embeddings are normalised, so that the first
attention has no norm at its input.
"""

import math
from typing import Annotated

from jaxtyping import Array, Float

from bertjax.constraints import (
    DropoutRate,
    Epsilon,
    InitStddev,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
    check_module,
    integer,
)
from bertjax.interfaces import Batch
from bertjax.layers import masks, width_scaling
from bertjax.layers.alternating_stack import AlternatingStack
from bertjax.layers.attention import SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import FeedForward, PreNormBlock
from bertjax.layers.dense import ActivationName, get_precision
from bertjax.layers.dropout import Dropout
from bertjax.layers.embeddings import LayerNorm
from bertjax.layers.position_encodings import Rotary
from bertjax.layers.stacked_model import StackedModel
from bertjax.models.bert import EQUAL_HEADS, check_length
from bertjax.pretrainer import Encoded

SeveralLayers = Annotated[int, integer(2)]


class Model(StackedModel):
    """ModernBERT encoder; the defaults are those of ModernBERT-base.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of each half of the gated feed-forward nets.
      hidden_act: Activation of the feed-forward nets and the prediction head.
      embedding_dropout: Dropout of the embeddings.
      attention_probs_dropout_prob: Dropout of the attention weights.
      attention_output_dropout_prob: Dropout of the attention's output.
      hidden_dropout_prob: Dropout of the feed-forward net's output.
      max_position_embeddings: Longest sequence; positions have no parameters.
      global_attn_every_n_layers: Layers 0, n, 2 n ... have global attention.
      local_attention: Width w of local attention: query i sees keys j with |i - j| <= w // 2.
      global_rope_theta: Base of the rotary frequencies of global attention: 10,000 in pretraining,
        160,000 from the context extension on (section 2.2.2).
      local_rope_theta: The same of local attention.
      classifier_pooling: Input of a classification head: "cls", the first token, or "mean", the
        mean over all tokens.
      initializer_range: Initial standard deviation of kernels and tables; of the kernels that end
        on the residual path it is this over sqrt(2 N) (appendix A).
      layer_norm_eps: Epsilon of every LayerNorm.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`).
      mup_base_width: `hidden_size` of the base model of the maximal update parametrisation, on
        which the learning rate was tuned (`layers/width_scaling.py`); 0 for none.
      mup_base_heads: `num_attention_heads` of the base model; 0 for heads of the same width.
    """

    vocab_size: PositiveInt = 50368
    hidden_size: PositiveInt = 768
    num_hidden_layers: SeveralLayers = 22
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 1152
    hidden_act: ActivationName = "gelu"
    embedding_dropout: DropoutRate = 0.0
    attention_probs_dropout_prob: DropoutRate = 0.0
    attention_output_dropout_prob: DropoutRate = 0.1
    hidden_dropout_prob: DropoutRate = 0.0
    max_position_embeddings: PositiveInt = 8192
    global_attn_every_n_layers: PositiveInt = 3
    local_attention: PositiveInt = 128
    global_rope_theta: PositiveFloat = 160_000.0
    local_rope_theta: PositiveFloat = 10_000.0
    classifier_pooling: Annotated[str, OneOf(("cls", "mean"))] = "cls"
    initializer_range: InitStddev = 0.02
    layer_norm_eps: Epsilon = 1e-5
    attention_kernel: KernelName = ""
    mup_base_width: NonNegativeInt = 0
    mup_base_heads: NonNegativeInt = 0

    relations = (EQUAL_HEADS, width_scaling.BASE_HEADS)

    # No layer has a bias, including the transforms of heads, except the last linear map of a head.
    norm_bias, classifier_bias = False, False

    def setup(self):
        check_module(self)
        self.word_embeddings = self._table(self.vocab_size, "vocab")
        self.embeddings_norm = LayerNorm(self.layer_norm_eps, self.norm_bias)
        self.embeddings_dropout = Dropout(self.embedding_dropout)
        self.first_layer = self._block(0)
        cycle = range(1, self.global_attn_every_n_layers + 1)
        self.layers = AlternatingStack(
            tuple(self._block(layer) for layer in cycle),
            self.num_hidden_layers - 1,
            remat=self.remat,
            unroll=self.unroll,
            keep_hidden_states=self.output_hidden_states,
        )
        self.norm = LayerNorm(self.layer_norm_eps, self.norm_bias)

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        check_length(batch["input_ids"].shape[1], self.max_position_embeddings)
        mask = masks.from_batch(batch)
        embedded = self.embeddings_norm(self.word_embeddings(batch["input_ids"]))
        embedded = self.embeddings_dropout(embedded, train=train)
        first = self.first_layer(embedded, mask, train=train)
        last, states = self.layers(first, mask, train=train)
        hidden_states = None if states is None else (embedded, first, *states)
        return Encoded(self.norm(last), hidden_states=hidden_states)

    def attend(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Logits over the vocabulary, by the tied word embeddings."""
        return self.word_embeddings.attend(width_scaling.scale_output(self, hidden))

    def _block(self, layer: int) -> PreNormBlock:
        is_global = layer % self.global_attn_every_n_layers == 0
        stddev = width_scaling.hidden_stddev(self)
        residual = stddev / math.sqrt(2 * self.num_hidden_layers)
        precision = get_precision(self.precision)
        attention = SelfAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            stddev,
            precision,
            residual,
            use_bias=False,
            rotary=Rotary(self.global_rope_theta if is_global else self.local_rope_theta),
            window=0 if is_global else self.local_attention,
            kernel=self.attention_kernel,
            query_scale=width_scaling.query_scale(self),
        )
        feed_forward = FeedForward(
            self.intermediate_size,
            self.hidden_act,
            stddev,
            precision,
            residual,
            use_bias=False,
            gated=True,
        )
        return PreNormBlock(
            attention,
            feed_forward,
            self.hidden_dropout_prob,
            self.layer_norm_eps,
            norm_bias=self.norm_bias,
            attention_dropout_rate=self.attention_output_dropout_prob,
            norm_attention=layer > 0,
        )
