"""Feature-based NER head: a BiLSTM on layers of a frozen encoder."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax.constraints import AnyText, DropoutRate, PositiveInt, Weight
from bertjax.interfaces import Batch
from bertjax.layers import layer_choice
from bertjax.layers.dense import named
from bertjax.layers.dropout import Dropout
from bertjax.layers.heads import TaskClassifier
from bertjax.layers.layer_choice import LayerChoice
from bertjax.layers.lstm import BiLSTM
from bertjax.pretrainer import Encoded, Encoder, Sum
from bertjax.tasks.ner import head as ner_head


class Task(nn.Module):
    """Devlin et al. 2019, section 5.3: activations of some layers, two layers of BiLSTM, classes.

    The BiLSTM reads all tokens of a sequence; as in `tasks/ner/head.py`, the first of each
    word counts.
    That the encoder is not trained is the run's: `config.optimizer.freeze_encoder`. The paper has
    "768-dimensional" layers, which we take for the width of each direction, and tells no dropout.

    Attributes:
      labels: The names of the classes, C of them: of a recipe none, the data tells them.
      layers: Which layers, by a name of `layers/layer_choice.py`.
      lstm_layers: Layers of the BiLSTM.
      lstm_size: F, width of each of its directions.
      lstm_dropout: Dropout of what each of its layers reads, and of what the classifier reads.
      weight: Share in the total loss.
    """

    labels: tuple[AnyText, ...]
    layers: LayerChoice = "concat_last_four"
    lstm_layers: PositiveInt = 2
    lstm_size: PositiveInt = 768
    lstm_dropout: DropoutRate = 0.1
    weight: Weight = 1.0

    rewrites_input = False
    predicts_tokens = False
    metrics = ner_head.Task.metrics

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        return batch

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Cross entropy of each word, in nats."""
        return ner_head.word_loss(*self.scores(encoder, encoded, batch, train=train), batch)

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Int[Array, "B L"]:
        """The most likely class of every token."""
        return jnp.argmax(self.scores(encoder, encoded, batch, train=False)[0], axis=-1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B L C"], Float[Array, "B L"]]:
        """Scores of the classes of every token, and how much each token counts."""
        lstm = BiLSTM(
            self.lstm_layers,
            self.lstm_size,
            self.lstm_dropout,
            named(encoder.precision),
            name="lstm",
        )
        features = layer_choice.chosen_features(encoded, self.layers)
        sequence = lstm(features, batch["attention_mask"], train=train)
        sequence = Dropout(self.lstm_dropout)(sequence, train=train)
        classifier = TaskClassifier(len(self.labels), encoder.initializer_range, name="classifier")
        return classifier(sequence), ner_head.word_weights(batch)
