"""CrammedBERT's encoder (Geiping & Goldstein 2023, section 4.2): BERT for a day on one GPU.

Pre-norm blocks with GeGLU and without biases of linear maps, scaled sinusoidal positions, and a
LayerNorm of the embeddings and of the last layer. The head of its masked language model is the tied
word embeddings alone. Details are those of the released code, config `crammed-bert`.
"""

from bertjax.constraints import DropoutRate, Epsilon, InitStddev, PositiveInt, check_module
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import FeedForward, PreNormBlock
from bertjax.layers.dense import ActivationName, get_precision
from bertjax.layers.embeddings import LayerNorm, ScaledSinusoids
from bertjax.layers.stacked_model import StackedModel
from bertjax.models.bert import EQUAL_HEADS, Embeddings, check_length
from bertjax.pretrainer import Encoded


class Model(StackedModel):
    """CrammedBERT encoder; the defaults are those of the released model in pretraining.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of each half of the gated feed-forward nets: half of the
        3,072 in the published config, which counts both.
      hidden_act: Activation of the feed-forward nets.
      hidden_dropout_prob: Dropout of embeddings and of the two outputs of each block; 0.1 in the
        published fine-tuning.
      attention_probs_dropout_prob: Dropout of the attention weights; 0.1 in the published
        fine-tuning.
      max_position_embeddings: Longest sequence.
      initializer_range: Initial standard deviation of kernels and tables.
      layer_norm_eps: Epsilon of every LayerNorm.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`).
    """

    vocab_size: PositiveInt = 32768
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 16
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 1536
    hidden_act: ActivationName = "gelu"
    hidden_dropout_prob: DropoutRate = 0.0
    attention_probs_dropout_prob: DropoutRate = 0.0
    max_position_embeddings: PositiveInt = 128
    initializer_range: InitStddev = 0.02
    layer_norm_eps: Epsilon = 1e-12
    attention_kernel: KernelName = ""

    reads_position_ids = True  # adds absolute positions: `tasks/glue/dataset.py` needs them

    relations = (EQUAL_HEADS,)

    head_transform, decoder_bias = False, False

    def setup(self):
        check_module(self)
        precision = get_precision(self.precision)
        self.word_embeddings = self._table(self.vocab_size, "vocab")
        self.position_embeddings = ScaledSinusoids(
            self.max_position_embeddings, self.hidden_size, precision
        )
        self.embeddings = Embeddings(
            self.word_embeddings,
            self.position_embeddings,
            None,
            self.layer_norm_eps,
            self.hidden_dropout_prob,
        )
        self.layers = self._stack(self._block())
        self.norm = LayerNorm(self.layer_norm_eps)

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        check_length(batch["input_ids"].shape[1], self.max_position_embeddings)
        embedded = self.embeddings(batch, train=train)
        last, states = self.layers(embedded, masks.from_batch(batch), train=train)
        hidden_states = None if states is None else (embedded, *states)
        return Encoded(self.norm(last), hidden_states=hidden_states)

    def _block(self) -> PreNormBlock:
        precision = get_precision(self.precision)
        attention = SelfAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            self.initializer_range,
            precision,
            use_bias=False,
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
        return PreNormBlock(attention, feed_forward, self.hidden_dropout_prob, self.layer_norm_eps)
