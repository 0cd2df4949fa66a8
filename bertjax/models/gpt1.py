"""GPT (Radford et al. 2018): a causal stack of post-norm blocks."""

from jaxtyping import Array, Float

from bertjax.constraints import DropoutRate, Epsilon, InitStddev, PositiveInt, check_module
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention
from bertjax.layers.attention_kernels import KernelName
from bertjax.layers.blocks import FeedForward, PostNormBlock
from bertjax.layers.dense import ActivationName, get_precision
from bertjax.layers.embeddings import PositionInitializer, position_initializer
from bertjax.layers.heads import last_token
from bertjax.layers.kv_cache import Cache, Reader
from bertjax.layers.stacked_model import StackedModel
from bertjax.models.bert import EQUAL_HEADS, check_length
from bertjax.pretrainer import Encoded


class Model(StackedModel):
    """GPT decoder, with fields named as BERT's; the defaults are those of GPT.

    Attributes:
      vocab_size: V, the size of the vocabulary.
      hidden_size: D, the width of hidden states.
      num_hidden_layers: N, the number of layers.
      num_attention_heads: H, the number of attention heads; divides `hidden_size`.
      intermediate_size: F, the width of the feed-forward nets.
      hidden_act: Activation of the feed-forward nets.
      hidden_dropout_prob: Dropout of the two outputs of each block (`resid_pdrop`), and of the
        embeddings.
      embd_pdrop: Dropout of the embeddings; None for `hidden_dropout_prob`.
      attention_probs_dropout_prob: Dropout of the attention weights.
      max_position_embeddings: Longest sequence.
      initializer_range: Initial standard deviation of all kernels and tables.
      position_initializer: "normal" as published, or "sinusoidal" (`layers/embeddings.py`).
      layer_norm_eps: Epsilon of every LayerNorm.
      attention_kernel: Kernel that computes attention (`layers/attention_kernels.py`).
    """

    vocab_size: PositiveInt = 40478
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt = 3072
    hidden_act: ActivationName = "gelu_new"
    hidden_dropout_prob: DropoutRate = 0.1
    embd_pdrop: DropoutRate | None = None
    attention_probs_dropout_prob: DropoutRate = 0.1
    max_position_embeddings: PositiveInt = 512
    initializer_range: InitStddev = 0.02
    position_initializer: PositionInitializer = "normal"
    layer_norm_eps: Epsilon = 1e-5
    attention_kernel: KernelName = ""

    is_causal = True  # `objectives/causal_lm.py` requires it, `objectives/mlm.py` refuses it
    reads_position_ids = True  # adds absolute positions: `tasks/glue/dataset.py` needs them

    relations = (EQUAL_HEADS,)

    cls_last = True  # only the last token sees all others: `runs/examples.py` acts accordingly

    def setup(self):
        check_module(self)
        precision, deviation = get_precision(self.precision), self.initializer_range
        self.word_embeddings = self._table(self.vocab_size, "vocab")
        positions = position_initializer(self.position_initializer, deviation)
        self.position_embeddings = self._table(self.max_position_embeddings, initializer=positions)
        attention = SelfAttention(
            self.num_attention_heads,
            self.attention_probs_dropout_prob,
            deviation,
            precision,
            kernel=self.attention_kernel,
        )
        feed_forward = FeedForward(self.intermediate_size, self.hidden_act, deviation, precision)
        self.layers = self._stack(
            PostNormBlock(attention, feed_forward, self.hidden_dropout_prob, self.layer_norm_eps)
        )
        self.reader = Reader(
            self.word_embeddings,
            self.position_embeddings,
            self.layers,
            self.hidden_dropout_prob if self.embd_pdrop is None else self.embd_pdrop,
        )

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        check_length(batch["input_ids"].shape[1], self.max_position_embeddings)
        sequence, embedded, states = self.reader(batch, train=train)
        hidden_states = None if states is None else (embedded, *states)
        summary = last_token(sequence, masks.padding_mask(batch["attention_mask"]))
        return Encoded(sequence, hidden_states=hidden_states, cls_state=summary)

    def prefill(self, batch: Batch, max_new_tokens: int) -> tuple[Float[Array, "B L D"], Cache]:
        """Encodes prompts; returns vectors and a key-value cache for `max_new_tokens` more."""
        return self.reader.prefill(batch, max_new_tokens)

    def decode(self, batch: Batch, cache: Cache) -> tuple[Float[Array, "B L D"], Cache]:
        """Encodes the next tokens with a key-value cache."""
        return self.reader.decode(batch, cache)
