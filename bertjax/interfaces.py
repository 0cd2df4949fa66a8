"""Read this first: what the parts of bertjax promise each other.

Dimension key, used in every shape annotation:

  B      examples in the (global) batch        L, M   query and key/value positions
  T      positions of a decoder
  P      predicted positions per example       D, E   hidden width; embedding width when factorised
  F      feed-forward width                    H, K   heads, width of a head
  N      layers                                V      vocabulary
  C      classes or choices                    W      characters per word

Batch keys (a batch is a flat mapping from these names to arrays):

  input_ids      int   [B L]     tokens
  segment_ids    int   [B L]     0 for the first segment, 1 for the second
  position_ids   int   [B L]     optional; 0, 1, 2 ... otherwise
  attention_mask bool  [B L]     True = may be attended to; [B L M] is a visible matrix
  word_starts    bool  [B L]     optional; True where a token begins a word
  pack_ids       int   [B L]     optional; rows packed of several texts: which one, 0 = padding
  branch_ids     int   [B L]     optional; texts with knowledge in them: which branch, 0 = the text
  entity_ids     int   [B L]     beside it; which entity a token or its branch is about, 0 = none
  prediction_order int [B L]     optional; when a token is predicted, -1 = never: all see it
  remembered     bool  [B L]     optional; True where a model with a memory remembers the token
  continues      bool  [B]       beside it; True where a row goes on with the last batch's text
  char_ids       int   [B L W]   the characters of each word, for models that read these
  pixel_values   float [B Y X C] images, in place of tokens
  mlm_positions  int   [B P]     which tokens are predicted
  mlm_labels     int   [B P]     what they were
  mlm_weights    float [B P]     1 for a prediction, 0 for padding
  mlm_spans      int   [B P 2]   masked spans: first and last token of the one it is part of
  decoder_input_ids int [B T]    what a decoder has read when it predicts each of `target_ids`
  decoder_positions int [B T]    optional; where these stand; 0, 1, 2 ... otherwise
  target_ids     int   [B T]     what an encoder-decoder says
  target_mask    bool  [B T]     True where a target is
  lm_kind        int   [B]       how each example of a unified language model sees itself
  original_ids   int   [B L]     input_ids before a generator replaced some of them
  generator_logits float [B P V] what the generator believes of each prediction
  teacher_*      float            what a teacher makes of the batch: see the objectives that ask one
  pair_label     int   [B]       sentence pairs: next-sentence (1 = random) or order (1 = swapped)
  labels         int or float [B]  what a task predicts; [B 2] where an answer begins and ends
  answer_places  int   [B L]     1 where an answer may stand, 2 at [CLS], 0 elsewhere
  token_labels   int   [B L]     1 + the class of a word at its first token, 0 elsewhere
  task_ids       int   [B]       of a mixture of tasks: which of them an example is of
  example_weight float [B]       0 for the padding of a short last batch, else 1
  example_id     int   [B]       the example's number in its epoch: the same in every epoch
  example_key    key   [B]       this step's own random key for every example; the trainer adds it
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import flax.struct
import numpy as np
from jaxtyping import Array, Float, PyTree

Batch = Mapping[str, Array]

Params = PyTree[Any]


def extent(batch: Mapping[str, Array | np.ndarray]) -> tuple[int, int]:
    """Examples of a batch and tokens of each; an image counts as one."""
    return batch["input_ids"].shape if "input_ids" in batch else (len(batch["pixel_values"]), 1)


Sum = tuple[Array, Array]
"""A weighted sum and the sum of its weights: what can be added up over microbatches and hosts."""


@flax.struct.dataclass
class Encoded:
    """What an encoder makes of a batch.

    Attributes:
      sequence: A vector for each token.
      pooled: A vector for the whole, where the encoder was taught one.
      hidden_states: Of all layers, on request.
      queries: What a second stream, which does not see the tokens there, makes of `mlm_positions`.
      summary: The vector of [CLS] where that is not the first token, or of what a decoder ends on.
      decoded: What a decoder makes of `decoder_input_ids`.
      layers: All layers, of a model that is made for tasks to weigh these.
      ponder: How many steps each token took, and what was left of its last one.
    """

    sequence: Float[Array, "B L D"]
    pooled: Float[Array, "B D"] | None = None
    hidden_states: tuple[Float[Array, "B L D"], ...] | None = None
    queries: Float[Array, "B P D"] | None = None
    summary: Float[Array, "B D"] | None = None
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
    and `follows`: objectives of which one has to stand before it in a config.
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
class Beginning(Objective, Protocol):
    """An objective that has a say in what the parameters are before the first step."""

    def begin(self, params: Params, frozen: Params) -> Params:
        """Returns the whole run's parameters, changed; `frozen` are the objective's own."""
        ...


@runtime_checkable
class Task(Objective, Protocol):
    """What is measured: an objective that also predicts. A `Dataset` of its name scores."""

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Array:
        """Predictions of every sequence, ready to be collected on the host."""
        ...


@runtime_checkable
class Dataset(Protocol):
    """A task's examples, on the host: what a model reads of them, and what predictions are worth.

    Made of the path of the data, `config.task`, `config.data` and what the model wants
    (`data/task_reading.py`). Beside it, each file of `datasets/` has `ask`, which makes the same of
    a person's lines, `ANSWERS`, the method of the task that tells what `ask` needs, and
    `DataFields`, the declared fields of `config.data` (`constraints.py`).
    """

    name: str
    batches: Mapping[str, Any]
    """Of each split: `train`, which `data/pair_batches.py` shows, and those that are evaluated."""
    dev: tuple[str, ...]
    """Splits that are predicted and scored after every epoch."""
    test: tuple[str, ...]
    """Splits that only the epoch that counts predicts."""
    left_out: Mapping[str, Sequence[str]]
    """Of each split, what the examples are called that had to be passed over."""
    task_fields: Mapping[str, Any]
    """What the data tells of `config.task`: the names of its classes, say."""

    def score(self, split: str, predictions: np.ndarray) -> dict[str, float]:
        """Metrics, as fractions; none where nobody knows the answers."""
        ...

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """From all `SPLIT/METRIC` of an epoch the `dev/score` by which runs are compared."""
        ...

    def write(self, split: str, predictions: np.ndarray, folder: Path) -> None:
        """Puts the files in which predictions are handed on under a folder."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Special tokens in the text are text: they never become control ids."""

    vocab_size: int
    pad_id: int
    unk_id: int | None
    cls_id: int | None
    sep_id: int | None
    mask_id: int | None
    pair_separators: int
    special_ids: tuple[int, ...]
    word_starts: np.ndarray
    fingerprint: str

    def encode_batch(self, texts: list[str]) -> list[list[int]]: ...

    def decode(self, ids: list[int]) -> str: ...

    def pieces(self, ids: list[int]) -> list[str]: ...

    def save(self, directory: str) -> None: ...


def encode(encoder: Encoder, batch: Batch, *, train: bool) -> Encoded:
    """What an encoder that learns makes of a batch."""
    return encoder(batch, train=train)


class Pretrainer(nn.Module):
    """One encoder and its objectives: prepare in order, encode once, add up the losses.

    Fine-tuning is the same thing with a task among the objectives. Parameters lie under
    `encoder/...` and `<name>/...`; those that no step changes, such as a teacher's, lie under the
    same names in the collection "frozen", which no optimizer and no checkpoint sees.

    Attributes:
      encoder: The encoder.
      objectives: For each name a function that makes the objective; order counts.
      encode: How the encoder reads a batch: as one that learns, or as `layers/frozen.py` has it.
    """

    encoder: nn.Module
    objectives: Mapping[str, Callable[[], nn.Module]]
    encode: Callable[..., Encoded] = encode

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
    def begin(self, params: Params, frozen: Mapping[str, Params]) -> Params:
        """The parameters before the first step, once the objectives have had their say."""
        for name, make in self.objectives.items():
            objective = make()
            if isinstance(objective, Beginning):
                params = objective.begin(params, frozen[name])
        return params

    @nn.nowrap
    def token_losses(self) -> list[str]:
        """Names of the objectives that predict tokens."""
        return [name for name, make in self.objectives.items() if make().predicts_tokens]

    @nn.nowrap
    def loss_weights(self) -> dict[str, float]:
        """Each objective's share in the total loss, by name."""
        return {name: make().weight for name, make in self.objectives.items()}
