"""Contracts of trained modules, and `Pretrainer`: an encoder with its objectives.

Shapes and batch keys: `interfaces.py`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import flax.linen as nn
import flax.struct
import numpy as np
from jaxtyping import Array, Float

from bertjax.constraints import Relation
from bertjax.interfaces import Batch, Params

Sum = tuple[Array, Array]
"""(weighted sum, sum of weights): sums, not means, so that microbatches and hosts can be added."""


@flax.struct.dataclass
class Encoded:
    """The outputs of an encoder.

    Attributes:
      sequence: The output vector of each token.
      pooled: The pooled output of each sequence, from encoders with a trained pooler.
      hidden_states: The outputs of all layers, if requested.
      queries: The query stream of two-stream attention at `mlm_positions` (XLNet, section 2.3), or
        the output of an enhanced mask decoder (DeBERTa, section 3.2).
      cls_state: The vector of [CLS] if it is not the first token, or of a decoder's last token.
      decoded: The decoder outputs for `decoder_input_ids`.
      layers: The outputs of all layers, from models with a scalar mix in their tasks (ELMo).
      ponder: Ponder cost of each token: number of steps plus remainder (Graves 2016).
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
    """A Linen module that encodes a batch; predictions are made by heads.

    Its fields have the names of the published `bert_config.json`; heads read those below, and
    some that an encoder may have: `classifier_bias` and `norm_bias`, whether the linear map and
    the LayerNorm of a head's transform have biases; `head_transform`, `decoder_bias` and
    `tie_word_embeddings`, whether a masked language model has a transform, and whether its output
    layer has a bias and is tied to the word embeddings (default of all: true); and
    `classifier_pooling`. Those of muP (`layers/width_scaling.py`) determine the initial values of
    heads as well.
    """

    vocab_size: int
    hidden_size: int
    embedding_size: int
    hidden_act: str
    initializer_range: float
    layer_norm_eps: float
    precision: str

    def __call__(self, batch: Batch, *, train: bool) -> Encoded: ...

    def init(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns new variables; see `flax.linen.Module.init`."""
        ...

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the module, or one of its methods; see `flax.linen.Module.apply`."""
        ...

    def attend(self, hidden: Float[Array, "*lead E"]) -> Float[Array, "*lead V"]:
        """Returns logits over the vocabulary: the product with the tied word embeddings."""
        ...


RandomRows = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
"""(generator, (B, L)) -> an array whose first axis is B."""


class SummaryMetric(NamedTuple):
    """A held-out metric of an objective that is printed when pretraining ends.

    Attributes:
      name: Name of the metric, without the objective's name.
      label: Text before the value.
      unit: "nats", "%" or "" for a plain number.
      baseline: Value of a trivial predictor, from all metrics of the objective; or the name of an
        entry of `summary.json`, such as `unigram_loss`; None where there is none.
      baseline_label: Text after the baseline.
    """

    name: str
    label: str
    unit: str = ""
    baseline: str | Callable[[Mapping[str, float]], float] | None = None
    baseline_label: str = ""


def token_summary(label: str, loss: str = "loss") -> tuple[SummaryMetric, ...]:
    """Loss and accuracy of an objective that predicts tokens, next to the unigram baseline.

    Args:
      label: Short name of the objective, such as "MLM".
      loss: The metric that is comparable with the unigram baseline's loss.
    """
    return (
        SummaryMetric(loss, f"{label} loss", "nats", "unigram_loss", "unigram"),
        SummaryMetric("accuracy", f"{label} accuracy", "%", "unigram_accuracy", "unigram"),
    )


class Objective(nn.Module):
    """Base class of training objectives: a Linen module with its own head.

    An objective is a file `objectives/NAME.py` whose class `Objective` has at least a field
    `weight`, its share in the total loss, and a method `loss`. It overrides class attributes where
    their defaults do not hold.

    Attributes:
      rewrites_input: Whether `prepare` changes `input_ids`; at most one objective of a run may.
      predicts_tokens: Whether its loss is the negative log-likelihood of tokens, in nats, which
        has a perplexity and a unigram baseline.
      metrics: Names of the metrics that `loss` returns, and "max" or "min" for the better values,
        "" for neither.
      summary: Metrics that are printed when pretraining ends.
      generates: Whether `bertjax generate` continues prompts with a model trained on it.
      reads_pooled: Whether it trains the encoder's pooler.
      pipeline_tag: Task of such models on the Hugging Face hub; "" for none.
      follows: Names of objectives, one of which must precede it in a config.
      relations: Constraints between its fields.
      model_relations: Constraints between its fields and those of the model.
    """

    rewrites_input = False
    predicts_tokens = False
    generates = False
    reads_pooled = False
    pipeline_tag = ""
    metrics: ClassVar[tuple[tuple[str, str], ...]] = ()
    summary: ClassVar[tuple[SummaryMetric, ...]] = ()
    follows: ClassVar[tuple[str, ...]] = ()
    relations: ClassVar[tuple[Relation, ...]] = ()
    model_relations: ClassVar[tuple[Relation, ...]] = ()

    @staticmethod
    def batch_keys(fields: Mapping[str, Any]) -> Mapping[str, RandomRows]:
        """Keys that a batch must have besides those of its format, given the fields' values.

        Each with a function that makes random rows, for benchmarks and plans without a corpus.
        """
        return {}

    @nn.nowrap
    def rows_per_example(self) -> int:
        """Number of consecutive rows of a batch that are one example: a question's choices."""
        return 1

    @nn.nowrap
    def unigram_options(self) -> dict[str, Any]:
        """Options of the unigram baseline (`runs/held_out.py`) for the predicted tokens."""
        return {}

    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Transforms the batch before it is encoded: corruption, sampling, a teacher's outputs."""
        return batch

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Returns the summed loss, the sum of its weights and the sums of its metrics."""
        raise NotImplementedError


@runtime_checkable
class DistillableObjective(Protocol):
    """An objective with logits, which distillation compares with those of a teacher."""

    def scores(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Float[Array, "*lead C"], Float[Array, "*lead"]]:
        """Returns logits and the weight of each prediction."""
        ...


@runtime_checkable
class ParamInitializer(Protocol):
    """An objective that changes the initial parameters."""

    def init_params(self, params: Params, frozen: Params) -> Params:
        """Returns the changed parameters.

        Args:
          params: The initial parameters of the whole `Pretrainer`.
          frozen: This objective's part of the collection "frozen".
        """
        ...


class Task(Objective):
    """Base class of task heads: an objective that also predicts; a `Dataset` scores it.

    Attributes:
      fields_from_data: Fields whose values the dataset determines; no config sets them.
      label_shape: Shape of `labels` of one example.
      exchanged_as: Another task, whose maps to the classes of transformers its head uses; "" for
        separate maps.
      embeds: Whether it trains embeddings of texts, without parameters: its field `pooling` is
        theirs, `query_prompt` and `document_prompt` are put before the texts.
      dot_product_losses: Of such a task, the values of `loss_type` that compare embeddings by dot
        products instead of cosines.
      compares_examples: Whether its loss compares all examples of a batch, so that its gradient is
        not a sum over microbatches (`train/accumulation.py`); it then has `loss_of_embeddings`.
    """

    fields_from_data: ClassVar[tuple[str, ...]] = ()
    label_shape: ClassVar[tuple[int, ...]] = ()
    exchanged_as: ClassVar[str] = ""
    embeds: ClassVar[bool] = False
    dot_product_losses: ClassVar[tuple[str, ...]] = ()
    compares_examples: ClassVar[bool] = False

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Array:
        """Predictions of every sequence, gathered on the host."""
        raise NotImplementedError

    def loss_of_embeddings(
        self, embeddings: Float[Array, "B D"], batch: Batch
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """The loss, see `loss`, from the predictions of the whole batch."""
        raise NotImplementedError


def apply_encoder(encoder: Encoder, batch: Batch, *, train: bool) -> Encoded:
    """Encodes a batch with a trainable encoder; the default of `Pretrainer.encode`."""
    return encoder(batch, train=train)


class Pretrainer(nn.Module):
    """An encoder with its objectives: prepare in order, encode once, sum the losses.

    Fine-tuning uses the same module with a task among the objectives. Parameters are under
    `encoder/...` and `<name>/...`. Constant ones, such as a teacher's, are under the same names in
    the Linen collection "frozen", so that optimizer, gradient and checkpoints never include them.

    Attributes:
      encoder: The encoder.
      objectives: For each name a function that builds the objective, in order of `prepare`.
      encode: Function that applies the encoder; `layers/layer_choice.py` has one for frozen ones,
        `layers/packed_rows.py` one for examples that share rows.
    """

    encoder: nn.Module
    objectives: Mapping[str, Callable[[], nn.Module]]
    encode: Callable[..., Encoded] = apply_encoder

    def setup(self):
        for name, make in self.objectives.items():
            setattr(self, name, make())

    def __call__(self, batch: Batch, *, train: bool) -> tuple[dict[str, Sum], dict[str, Sum]]:
        """Returns (loss sum, weight sum) by objective, and metrics by `<objective>/<metric>`."""
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
        """Applies `prepare` of every objective to the batch, in config order."""
        for name in self.objectives:
            batch = getattr(self, name).prepare(self.encoder, batch, train=train)
        return batch

    def predict(self, batch: Batch) -> Array:
        """Returns the predictions of the task; the module must have exactly one."""
        made = [getattr(self, name) for name in self.objectives]
        (task,) = [objective for objective in made if hasattr(objective, "predict")]
        batch = task.prepare(self.encoder, batch, train=False)
        return task.predict(self.encoder, self.encoder(batch, train=False), batch)

    def embed(self, batch: Batch, *, train: bool) -> Array:
        """Returns the predictions of the only objective, a task that compares examples."""
        (name,) = self.objectives
        task = getattr(self, name)
        batch = task.prepare(self.encoder, batch, train=train)
        return task.predict(self.encoder, self.encode(self.encoder, batch, train=train), batch)

    def losses_of_embeddings(
        self, embeddings: Array, batch: Batch
    ) -> tuple[dict[str, Sum], dict[str, Sum]]:
        """Returns the results of `__call__`, given those of `embed` for the whole batch."""
        (name,) = self.objectives
        loss_sum, weight_sum, metrics = getattr(self, name).loss_of_embeddings(embeddings, batch)
        named = {f"{name}/{metric}": value for metric, value in metrics.items()}
        return {name: (loss_sum, weight_sum)}, named

    @nn.nowrap
    def compares_examples(self) -> bool:
        """Whether a task compares all examples of a batch."""
        return any(getattr(make(), "compares_examples", False) for make in self.objectives.values())

    @nn.nowrap
    def rows_per_example(self) -> int:
        """Number of consecutive rows that no microbatch separates."""
        packed = getattr(self.encode, "num_examples", 1)
        return math.lcm(packed, *(make().rows_per_example() for make in self.objectives.values()))

    @nn.nowrap
    def init_params(self, params: Params, frozen: Mapping[str, Params]) -> Params:
        """Returns the initial parameters after `init_params` of every `ParamInitializer`.

        Args:
          params: The parameters from `init`.
          frozen: The collection "frozen", by objective.
        """
        for name, make in self.objectives.items():
            objective = make()
            if isinstance(objective, ParamInitializer):
                params = objective.init_params(params, frozen[name])
        return params

    @nn.nowrap
    def token_losses(self) -> list[str]:
        """Returns the names of the objectives whose loss is over tokens (`predicts_tokens`)."""
        return [name for name, make in self.objectives.items() if make().predicts_tokens]

    @nn.nowrap
    def loss_weights(self) -> dict[str, float]:
        """Returns the weight of each objective in the total loss, by name."""
        return {name: make().weight for name, make in self.objectives.items()}
