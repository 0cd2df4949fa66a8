"""Contracts of modules that are trained, and `Pretrainer`: an encoder with its objectives.

Shapes and batch keys: `interfaces.py`.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import flax.linen as nn
import flax.struct
from jaxtyping import Array, Float

from bertjax.interfaces import Batch, Params

Sum = tuple[Array, Array]
"""A weighted sum and the sum of its weights: what can be added up over microbatches and hosts."""


@flax.struct.dataclass
class Encoded:
    """The outputs of an encoder.

    Attributes:
      sequence: One vector per token.
      pooled: One vector per sequence, from encoders with a trained pooler.
      hidden_states: The outputs of all layers, if they are requested.
      queries: The query stream of two-stream attention at `mlm_positions` (XLNet, section 2.3).
      cls_state: The vector of [CLS] if that is not the first token, or of a decoder's last token.
      decoded: The outputs of the decoder for `decoder_input_ids`.
      layers: All layers, from models whose layers tasks weigh (ELMo).
      ponder: The number of steps of each token plus the remainder (adaptive computation time).
    """

    sequence: Float[Array, "B L D"]
    pooled: Float[Array, "B D"] | None = None
    hidden_states: tuple[Float[Array, "B L D"], ...] | None = None
    queries: Float[Array, "B P D"] | None = None
    cls_state: Float[Array, "B D"] | None = None
    decoded: Float[Array, "B T D"] | None = None
    layers: tuple[Float[Array, "B L D"], ...] | None = None
    ponder: Float[Array, "B L"] | None = None


@runtime_checkable
class Encoder(Protocol):
    """A Linen module that reads a batch and predicts nothing by itself.

    Its fields are the words of the published `bert_config.json`; heads read the ones below.
    """

    vocab_size: int
    hidden_size: int
    embedding_size: int
    hidden_act: str
    initializer_range: float
    layer_norm_eps: float
    precision: str

    def __call__(self, batch: Batch, *, train: bool) -> Encoded: ...

    def attend(self, hidden: Float[Array, "*lead E"]) -> Float[Array, "*lead V"]:
        """Scores of the vocabulary: products with the word embeddings, which are shared."""
        ...


@runtime_checkable
class Objective(Protocol):
    """What is learned: a Linen module with its own head and a `weight` in the total loss.

    Its class may declare `relations` between its fields, `model_relations` with those of the model,
    `follows`: objectives of which one has to stand before it in a config, `reads_pooled`: that it
    trains the pooler, `generates`: that a trained model continues prompts, and `pipeline_tag`: the
    task of such models on the Hugging Face hub.
    """

    weight: float
    rewrites_input: bool
    """Whether `prepare` changes `input_ids`; at most one objective of a run may."""
    predicts_tokens: bool
    """Whether its loss is the negative log-probability of tokens, which has a perplexity."""
    metrics: tuple[tuple[str, str], ...]
    """What `loss` reports besides the loss: name, and "max" or "min" for the better values, "" for
    neither."""

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Works on the batch before the encoder reads it: corruption, sampling, a teacher."""
        ...

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Returns the summed loss, the sum of its weights and further sums to be reported."""
        ...


@runtime_checkable
class Scored(Objective, Protocol):
    """An objective whose scores a student may learn from those of a teacher."""

    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "*lead C"], Float[Array, "*lead"]]:
        """Returns logits and how much each of the predictions counts."""
        ...


@runtime_checkable
class ParamInitializer(Objective, Protocol):
    """An objective that has a say in what the parameters are before the first step."""

    def init_params(self, params: Params, frozen: Params) -> Params:
        """Returns the whole run's parameters, changed; `frozen` are the objective's own."""
        ...


@runtime_checkable
class Task(Objective, Protocol):
    """What is measured: an objective that also predicts. A `Dataset` of its name scores."""

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Array:
        """Predictions of every sequence, ready to be collected on the host."""
        ...


def apply_encoder(encoder: Encoder, batch: Batch, *, train: bool) -> Encoded:
    """Encodes a batch with an encoder that is trained."""
    return encoder(batch, train=train)


class Pretrainer(nn.Module):
    """One encoder and its objectives: prepare in order, encode once, add up the losses.

    Fine-tuning is the same thing with a task among the objectives. Parameters lie under
    `encoder/...` and `<name>/...`; those that no step changes, such as a teacher's, lie under the
    same names in the collection "frozen", which no optimizer and no checkpoint sees.

    Attributes:
      encoder: The encoder.
      objectives: For each name a function that makes the objective; order counts.
      encode: How the encoder reads a batch: as one that learns, or as
        `layers/layer_choice.py` has it.
    """

    encoder: nn.Module
    objectives: Mapping[str, Callable[[], nn.Module]]
    encode: Callable[..., Encoded] = apply_encoder

    def setup(self):
        for name, make in self.objectives.items():
            setattr(self, name, make())

    def __call__(self, batch: Batch, *, train: bool) -> tuple[dict[str, Sum], dict[str, Sum]]:
        """Returns each objective's (loss sum, weight sum) and all metrics, by name."""
        batch = self.prepare(batch, train=train)
        encoded = self.encode(self.encoder, batch, train=train)
        losses, metrics = {}, {}
        for name in self.objectives:
            loss = getattr(self, name).loss
            loss_sum, weight_sum, extra = loss(self.encoder, encoded, batch, train=train)
            losses[name] = (loss_sum, weight_sum)
            metrics |= {f"{name}/{metric}": value for metric, value in extra.items()}
        return losses, metrics

    def prepare(self, batch: Batch, *, train: bool) -> Batch:
        """Lets every objective work on the batch, in the config's order."""
        for name in self.objectives:
            batch = getattr(self, name).prepare(self.encoder, batch, train=train)
        return batch

    def predict(self, batch: Batch) -> Array:
        """The predictions of the one task that this module was built with."""
        made = [getattr(self, name) for name in self.objectives]
        (task,) = [objective for objective in made if hasattr(objective, "predict")]
        batch = task.prepare(self.encoder, batch, train=False)
        return task.predict(self.encoder, self.encoder(batch, train=False), batch)

    @nn.nowrap
    def init_params(self, params: Params, frozen: Mapping[str, Params]) -> Params:
        """The parameters before the first step, once the objectives have had their say."""
        for name, make in self.objectives.items():
            objective = make()
            if isinstance(objective, ParamInitializer):
                params = objective.init_params(params, frozen[name])
        return params

    @nn.nowrap
    def token_losses(self) -> list[str]:
        """Names of the objectives that predict tokens."""
        return [name for name, make in self.objectives.items() if make().predicts_tokens]

    @nn.nowrap
    def loss_weights(self) -> dict[str, float]:
        """Each objective's share in the total loss, by name."""
        return {name: make().weight for name, make in self.objectives.items()}
