"""ELMo (Peters et al. 2018): a character CNN for words, forward and backward LSTMs.

The two directions share the word encoder and nothing above it. The vector of a token is the forward
one, then the backward one. Rows that a batch marks as continued (`is_continuation`) keep the states
of all LSTMs, in both directions as in the released code.
"""

from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.constraints import (
    DropoutRate,
    InitStddev,
    NonNegativeFloat,
    NonNegativeInt,
    NotEmpty,
    PositiveInt,
    Relation,
    check_module,
)
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.char_cnn import CharacterCNN
from bertjax.layers.dense import ActivationName, PrecisionName, get_precision
from bertjax.layers.dropout import Dropout
from bertjax.layers.lstm import BidirectionalStack, CarriedState
from bertjax.pretrainer import Encoded

Filters = Annotated[tuple[tuple[PositiveInt, PositiveInt], ...], NotEmpty()]


class Model(nn.Module):
    """ELMo; the defaults are those of the released model of 93.6 million parameters.

    Attributes:
      vocab_size: V, words of the tokenizer, which are predicted; the model reads any word.
      hidden_size: D, both directions together (`projection_dim` of the released options, twice).
      num_hidden_layers: N, LSTMs in each direction (`n_layers`).
      intermediate_size: F, width of the cell state of an LSTM (`dim`).
      filters: (width, number) of each kind of character filter.
      char_embedding_size: Width of the character embeddings.
      num_highway_layers: Highway layers above the filters (`n_highway`).
      max_chars_per_word: W, characters of a word with its two markers; longer words are truncated.
      hidden_act: Activation of the filters.
      hidden_dropout_prob: Dropout of the input of each LSTM and of the output.
      cell_clip: Largest magnitude of a cell state; 0 for no limit.
      proj_clip: Largest magnitude of an LSTM's output; 0 for no limit.
      without_skip_connections: Whether layers after the first leave out the residual connection
        from their input (`use_skip_connections` of the released options, negated).
      initializer_range: Initial standard deviation of heads; the model is initialised as published.
      output_hidden_states: Whether `Encoded.hidden_states` is filled: words, then each layer.
      precision: A key of PRECISIONS of `layers/dense.py`, such as "bfloat16".
      unroll: Steps of the recurrence compiled in one piece.
    """

    vocab_size: PositiveInt = 793471
    hidden_size: PositiveInt = 1024
    num_hidden_layers: PositiveInt = 2
    intermediate_size: PositiveInt = 4096
    filters: Filters = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    char_embedding_size: PositiveInt = 16
    num_highway_layers: NonNegativeInt = 2
    max_chars_per_word: PositiveInt = 50
    hidden_act: ActivationName = "relu"
    hidden_dropout_prob: DropoutRate = 0.1
    cell_clip: NonNegativeFloat = 3.0
    proj_clip: NonNegativeFloat = 3.0
    without_skip_connections: bool = False
    initializer_range: InitStddev = 0.02
    output_hidden_states: bool = False
    precision: PrecisionName = "float32"
    unroll: PositiveInt = 1

    relations = (
        Relation(
            ("hidden_size",),
            lambda width: width % 2 == 0,
            "an even number, half of it for each direction",
            lambda width: f"nearest: {width - 1}, {width + 1}",
        ),
        Relation(
            ("filters", "max_chars_per_word"),
            lambda filters, max_length: all(width <= max_length for width, _ in filters),
            "no filter wider than max_chars_per_word",
            "raise max_chars_per_word or leave the filter out",
        ),
    )

    layer_norm_eps = 1e-12  # of heads; the model has no LayerNorm
    reads_characters = True  # `runs/examples.py` has words spelled
    supports_packing = False  # the state of an LSTM crosses documents

    def setup(self):
        check_module(self)
        precision, each = get_precision(self.precision), self.hidden_size // 2
        self.words = CharacterCNN(
            each,
            self.filters,
            self.char_embedding_size,
            self.num_highway_layers,
            self.hidden_act,
            precision,
        )
        self.recurrent = BidirectionalStack(
            self.num_hidden_layers,
            self.intermediate_size,
            each,
            self.cell_clip,
            self.proj_clip,
            self.hidden_dropout_prob,
            self.unroll,
            precision,
            self.without_skip_connections,
        )
        self.state = CarriedState(
            self.num_hidden_layers, self.intermediate_size, each, precision.activations
        )
        self.dropout = Dropout(self.hidden_dropout_prob)

    def __call__(self, batch: Batch, *, train: bool) -> Encoded:
        padding_mask = masks.padding_mask(batch["attention_mask"])
        words = self.words(batch["char_ids"]) * padding_mask[..., None]
        before = self.state.recall(batch, len(words))
        layers, after = self.recurrent(words, padding_mask, before, train=train)
        self.state.keep(batch, after)
        layers = (jnp.concatenate([words, words], axis=-1), *layers)
        return Encoded(
            self.dropout(layers[-1], train=train),
            hidden_states=layers if self.output_hidden_states else None,
            layers=layers,
        )

    def attend(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Raises `UserError`: there are no word embeddings to share."""
        raise UserError(
            "model elmo reads characters and has no word embeddings for tied logits; pretrain it "
            "with objective bidirectional_lm"
        )

    @property
    def embedding_size(self) -> int:
        """Width of the word vectors."""
        return self.hidden_size // 2
