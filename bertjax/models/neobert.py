"""NeoBERT's encoder (Le Breton et al. 2025, section 3): RMSNorm, SwiGLU, rotary positions.

A stack of many narrow pre-norm blocks without biases, and a final RMSNorm. The output layer of its
masked language model is a separate linear map, without a transform before it. Details are those of
the released code.
"""

from jaxtyping import Array, Float

from bertjax.constraints import (
    DropoutRate,
    Epsilon,
    InitStddev,
    PositiveFloat,
    PositiveInt,
    check_module,
)
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import FeedForward, PreNormBlock
from bertjax.layers.dense import ActivationName, get_precision
from bertjax.layers.embeddings import RMSNorm
from bertjax.layers.position_encodings import Rotary
from bertjax.layers.stacked_model import StackedModel
from bertjax.models.bert import EQUAL_HEADS, check_length
from bertjax.pretrainer import Encoded


class Model(StackedModel):
    """NeoBERT encoder; the defaults are those of the released model.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of each half of the gated feed-forward nets: two thirds of the
        3,072 in the published config, as its code computes it.
      hidden_act: Activation of the feed-forward nets.
      hidden_dropout_prob: Dropout of the two outputs of each block.
      attention_probs_dropout_prob: Dropout of the attention weights.
      max_position_embeddings: Longest sequence; positions have no parameters.
      rope_theta: Base of the rotary frequencies.
      initializer_range: Initial standard deviation of kernels and tables before their truncation at
        two of it; 0.013 has the variance of the published uniform distribution from -0.02 to 0.02.
      layer_norm_eps: Epsilon of every RMSNorm.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`).
    """

    vocab_size: PositiveInt = 30522
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 28
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 2048
    hidden_act: ActivationName = "silu"
    hidden_dropout_prob: DropoutRate = 0.0
    attention_probs_dropout_prob: DropoutRate = 0.0
    max_position_embeddings: PositiveInt = 4096
    rope_theta: PositiveFloat = 10_000.0
    initializer_range: InitStddev = 0.013
    layer_norm_eps: Epsilon = 1e-5
    attention_kernel: KernelName = ""

    relations = (EQUAL_HEADS,)

    head_transform, tie_word_embeddings = False, False

    def setup(self):
        check_module(self)
        self.word_embeddings = self._table(self.vocab_size, "vocab")
        self.layers = self._stack(self._block())
        self.norm = RMSNorm(self.layer_norm_eps)

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        check_length(batch["input_ids"].shape[1], self.max_position_embeddings)
        embedded = self.word_embeddings(batch["input_ids"])
        last, states = self.layers(embedded, masks.from_batch(batch), train=train)
        hidden_states = None if states is None else (embedded, *states)
        return Encoded(self.norm(last), hidden_states=hidden_states)

    def attend(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Logits by the word embeddings, for objectives other than the masked language model."""
        return self.word_embeddings.attend(hidden)

    def _block(self) -> PreNormBlock:
        precision = get_precision(self.precision)
        attention = SelfAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            self.initializer_range,
            precision,
            use_bias=False,
            rotary=Rotary(self.rope_theta, interleaved=True),
            kernel=self.attention_kernel,
        )
        feed_forward = FeedForward(
            self.intermediate_size,
            self.hidden_act,
            self.initializer_range,
            precision,
            use_bias=False,
            gated=True,
        )
        return PreNormBlock(
            attention,
            feed_forward,
            self.hidden_dropout_prob,
            self.layer_norm_eps,
            norm_bias=False,
            norm=RMSNorm,
        )
