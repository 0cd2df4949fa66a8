"""Batch keys, axis names, and the contracts of host code: datasets and tokenizers.

Dimensions, used in every shape annotation:

  B      examples in the (global) batch        L, M   query and key/value positions
  T      positions of a decoder
  P      predicted positions per example       D, E   hidden width; embedding width when factorised
  F      feed-forward width                    H, K   heads, width of a head
  N      layers                                V      vocabulary
  C      classes or choices                    W      characters per word

Batch keys (a batch is a flat mapping from these names to arrays):

  input_ids      int   [B L]     token ids
  segment_ids    int   [B L]     0 for the first segment, 1 for the second
  position_ids   int   [B L]     optional; default 0, 1, 2 ...
  attention_mask bool  [B L]     True for tokens, False for padding; [B L M] for a visible matrix
  word_starts    bool  [B L]     optional; True for the first token of a word
  pack_ids       int   [B L]     optional; packed rows: number of the text from 1, 0 = padding
  packed_tokens  int   [B S]     optional; G examples share rows that have G S slots: index of each
                                 slot's token in their [G L], -1 = padding (`packed_rows.py`)
  branch_ids     int   [B L]     optional; K-BERT: number of the branch from 1, 0 = the text itself
  entity_ids     int   [B L]     with it; number of the entity of a token or branch, 0 = none
  prediction_order int [B L]     optional; XLNet: step of a token's prediction, -1 = not predicted
  memory_mask    bool  [B L]     optional; True for tokens that a model stores in its memory
  is_continuation bool [B]       with it; True for rows that continue the text of the last batch
  char_ids       int   [B L W]   character ids of each word, for models that read characters
  pixel_values   float [B Y X C] images, instead of tokens
  mlm_positions  int   [B P]     predicted positions
  mlm_labels     int   [B P]     original token ids at these positions
  mlm_weights    float [B P]     1 for a prediction, 0 for padding
  mlm_spans      int   [B P 2]   first and last token of the masked span of each prediction
  decoder_input_ids int [B T]    decoder inputs, `target_ids` shifted right
  decoder_positions int [B T]    optional; positions of these; default 0, 1, 2 ...
  target_ids     int   [B T]     targets of a decoder
  target_mask    bool  [B T]     True for targets, False for padding
  lm_kind        int   [B]       UniLM, MNTP: attention pattern of each example
  original_ids   int   [B L]     input_ids before replacement by a generator
  generator_logits float [B P V] logits of the generator at the predicted positions
  teacher_*      float            outputs of a teacher: see the objectives that use one
  pair_label     int   [B]       sentence pairs: next-sentence (1 = random) or order (1 = swapped)
  labels         int or float [B]  labels of a task; [B 2] for start and end of an answer, [B C]
                                 with 0 or 1 for each class if an example may have several
  answer_places  int   [B L]     1 for tokens that an answer may contain, 2 for [CLS], else 0
  token_labels   int   [B L]     1 + the class of a word at its first token, else 0
  span_ids       int   [B L]     1 for tokens of the first marked span, 2 of the second, 3 of both
  token_kinds    int   [B L]     1 for tokens of a query, 2 for compared ones of a document, else 0
  task_ids       int   [B]       index of each example's task in a mixture of tasks
  example_weight float [B]       0 for padding examples of a short last batch, else 1
  example_id     int   [B]       number of the example in its epoch, the same in every epoch
  example_key    key   [B]       random key of each example in this step; added by the trainer
  train_step     float [B]       position in the schedule of this step; added by the trainer, absent
                                 in evaluation
  schedule_step  float [B]       optional; the step at which the schedule is evaluated
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

Batch = Mapping[str, Any]
"""Arrays by key: of JAX on the device, of numpy on the host."""

Params = Any
"""A tree of arrays: nested dicts, as of Linen."""


def extent(batch: Batch) -> tuple[int, int]:
    """Returns (examples, encoded tokens per example) of a batch; an image counts as one token."""
    for key in ("packed_tokens", "input_ids"):
        if key in batch:
            return batch[key].shape
    return len(batch["pixel_values"]), 1


@runtime_checkable
class Dataset(Protocol):
    """The examples of a task on the host: reads, batches, scores and writes predictions.

    Each `tasks/NAME/dataset.py` also defines `from_inputs`, which encodes lines of a user for
    prediction, `input_fields`, the names of the fields of a line, `OUTPUT`, the task's method that
    predicts them, and `DataFields`, the declared fields of `config.data` (`constraints.py`). A
    dataset that detects its columns or classes may have `findings`, lines that describe them and
    are printed before the first step.
    """

    name: str
    batches: Mapping[str, Any]
    """By split: `train` (`tasks/batches.py`) and the evaluation splits."""
    dev: tuple[str, ...]
    """Splits that are predicted and scored after every epoch."""
    test: tuple[str, ...]
    """Splits that are predicted in the selected epoch only."""
    left_out: Mapping[str, Sequence[str]]
    """By split, the ids of skipped examples."""
    task_fields: Mapping[str, Any]
    """Fields of `config.task` that the data determines, such as the names of its classes."""

    def __init__(
        self, data: str, task: Mapping[str, Any], fields: Mapping[str, Any], spec: Any
    ) -> None:
        """Reads and encodes the available splits.

        Args:
          data: A folder of files in the layout of the task; for tasks on tables of any source a
            file, or a folder with a file for each split (`tasks/sequence/files.py`).
          task: `config.task`.
          fields: `config.data`.
          spec: The encoding: tokenizer, lengths and batch sizes (`tasks/dataset.py`).

        Raises:
          UserError: the data is missing or invalid, or does not fit the config.
        """
        ...

    def score(self, split: str, predictions: np.ndarray) -> dict[str, float]:
        """Returns metrics as fractions; none for an unlabelled split."""
        ...

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`, the metric to compare runs by, from all `SPLIT/METRIC`."""
        ...

    def write(self, split: str, predictions: np.ndarray, folder: Path) -> None:
        """Writes the predictions to a folder, in the official format."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Tokenizer of a model: text to token ids and back, without special tokens.

    The only contract of tokenizers; `tokenizers/subword.py` and `tokenizers/sentencepiece.py`
    implement it, `tokenizers/tokenizer.py` loads and trains them. Literal special tokens in text
    are text, never control ids. `data/sequence_template.py` puts [CLS] and [SEP] around sequences.

    Attributes:
      kind: Type of the vocabulary, such as wordpiece or bpe.
      vocab_size: One more than the largest id.
      pad_id: Padding; another id where the vocabulary has no padding token.
      unk_id: Unknown token; None if there is none.
      cls_id: Begins a sequence (ends it in XLNet); None if there is none.
      sep_id: Ends a segment; None if there is none.
      mask_id: Replaces masked tokens; None if there is none.
      pair_separators: Number of [SEP] between two texts: 2 for RoBERTa, else 1.
      special_ids: Ids of all special tokens, in increasing order.
      word_starts: Whether the piece of each id begins a word, bool [vocab_size].
      fingerprint: Hash of everything that affects the ids of a text.
    """

    kind: str
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

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Encodes each text to ids."""
        ...

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encodes a text to ids, and the (start, end) character span of each."""
        ...

    def begins_word(self, ids: Sequence[int]) -> np.ndarray:
        """Whether each token of an encoded text begins a word, bool [len(ids)].

        Unlike `word_starts`, which sees no other token, it is true of the first token and, where
        the tokenizer splits words there, of a punctuation mark after a word.
        """
        ...

    def decode(self, ids: list[int]) -> str:
        """Decodes ids to text, in which special tokens are spelled out."""
        ...

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the vocabulary's piece for each id."""
        ...

    def save(self, directory: str) -> None:
        """Saves a folder that `tokenizers.tokenizer.load` reads, atomically."""
        ...
