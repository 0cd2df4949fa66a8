"""Batch keys, axis names and the contracts of the host: datasets and tokenizers.

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
  memory_mask    bool  [B L]     optional; True where a model with a memory remembers the token
  is_continuation bool [B]       with it; True where a row continues with the last batch's text
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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, PyTree

Batch = Mapping[str, Array]

Params = PyTree[Any]


def extent(batch: Mapping[str, Array | np.ndarray]) -> tuple[int, int]:
    """Examples of a batch and tokens of each; an image counts as one."""
    return batch["input_ids"].shape if "input_ids" in batch else (len(batch["pixel_values"]), 1)


@runtime_checkable
class Dataset(Protocol):
    """A task's examples, on the host: what a model reads of them, and what predictions are worth.

    Made of the path of the data, `config.task`, `config.data` and what the model requires
    (`tasks/dataset.py`). Each `tasks/NAME/dataset.py` also defines `from_inputs`, which reads lines
    of a user for prediction, `OUTPUT`, the method of the task that they are predicted with, and
    `DataFields`, the declared fields of `config.data` (`constraints.py`).
    """

    name: str
    batches: Mapping[str, Any]
    """Of each split: `train`, which `tasks/batches.py` shows, and those that are evaluated."""
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
