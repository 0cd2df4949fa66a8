"""Feature-based NER head: a BiLSTM on layers of a frozen encoder."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bertjax import pretrainer
from bertjax.constraints import AnyText, DropoutRate, PositiveInt, Weight
from bertjax.interfaces import Batch
from bertjax.layers import layer_choice
from bertjax.layers.dense import get_precision
from bertjax.layers.dropout import Dropout
from bertjax.layers.heads import TaskClassifier
from bertjax.layers.layer_choice import LayerChoice
from bertjax.layers.lstm import BiLSTM
from bertjax.pretrainer import Encoded, Encoder, Sum
from bertjax.tasks.ner import head as ner_head


class Task(pretrainer.Task):
    """Feature-based NER (Devlin et al. 2019, section 5.3): encoder layers, a BiLSTM, a classifier.

    The BiLSTM reads all tokens of a sequence; as in `tasks/ner/head.py`, only the first token of
    each word is classified. The encoder is frozen by the run: `config.optimizer.freeze_encoder`.
    The paper has "768-dimensional" layers, here the width of each direction, and states no dropout.

    Attributes:
      labels: The names of the classes, C of them; set from the training data.
      layers: The encoder layers to use, a name of `layers/layer_choice.py`.
      lstm_layers: Number of BiLSTM layers.
      lstm_size: F, width of each direction.
      lstm_dropout: Dropout rate of the inputs of each BiLSTM layer and of the classifier.
      weight: Weight in the total loss.
    """

    labels: tuple[AnyText, ...]
    layers: LayerChoice = "concat_last_four"
    lstm_layers: PositiveInt = 2
    lstm_size: PositiveInt = 768
    lstm_dropout: DropoutRate = 0.1
    weight: Weight = 1.0

    metrics = ner_head.Task.metrics
    fields_from_data = ("labels",)
    pipeline_tag = ner_head.Task.pipeline_tag

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the cross entropy over the words, in nats."""
        return ner_head.word_loss(*self.scores(encoder, encoded, batch, train=train), batch)

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Int[Array, "B L"]:
        """Returns the index of the most likely class of every token."""
        return jnp.argmax(self.scores(encoder, encoded, batch, train=False)[0], axis=-1)

    @nn.compact
    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "B L C"], Float[Array, "B L"]]:
        """Returns the logits of the classes, and the weight, of every token."""
        lstm = BiLSTM(
            self.lstm_layers,
            self.lstm_size,
            self.lstm_dropout,
            get_precision(encoder.precision),
            name="lstm",
        )
        features = layer_choice.select_features(encoded, self.layers)
        sequence = lstm(features, batch["attention_mask"], train=train)
        sequence = Dropout(self.lstm_dropout)(sequence, train=train)
        classifier = TaskClassifier(len(self.labels), encoder.initializer_range, name="classifier")
        return classifier(sequence), ner_head.word_weights(batch)
