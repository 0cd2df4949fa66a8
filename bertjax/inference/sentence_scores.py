"""Score texts by their log likelihood, or pseudo-log-likelihood for masked language models.

load      run -> the scorer that fits its objective
encode    texts -> tokens, checked against the model's maximum length
Scorer    tokens -> log probabilities in nats, of whole texts or after a context

The pseudo-log-likelihood sums the log probability of each token given all others, with the token
masked (Salazar et al. 2020). With `within_word` the later tokens of its word are masked as well:
otherwise the end of a long word reveals its beginning (Kauf and Ivanova 2023, PLL-word-l2r).
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import build, pretrained
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.inference import fill_mask, language_model
from bertjax.inference.perplexity import pad_right
from bertjax.inference.score_log import ScoreLog
from bertjax.interfaces import Batch, Params, Tokenizer
from bertjax.pretrainer import Pretrainer

_BUCKET = 8
"""Texts are padded to a multiple of this, so that few lengths are compiled."""
_CHUNK = 1024
"""Texts whose rows are in memory at the same time, and whose scores are logged together."""

Report = Callable[[int], None]
"""Called with the number of scored texts."""


class Scorer(abc.ABC):
    """Computes log probabilities of texts.

    Attributes:
      tokenizer: Tokenizer of the run.
      max_length: Maximum number of tokens of a sequence, including special tokens.
      num_special: Special tokens of each sequence.
    """

    tokenizer: Tokenizer
    max_length: float
    num_special: int

    @property
    def max_tokens(self) -> float:
        """Maximum number of tokens of a text, without special tokens."""
        return self.max_length - self.num_special

    def score(
        self,
        rows: Sequence[Sequence[int]],
        starts: Sequence[int],
        batch_size: int,
        report: Report = lambda count: None,
        log: ScoreLog | None = None,
    ) -> list[float]:
        """Returns the log probability of each text after its context, in nats.

        Args:
          rows: Tokens of each text, at most `max_tokens`, without special tokens.
          starts: Number of tokens of each text that are its context, and are not scored.
          batch_size: Sequences per batch; a masked model has one for each scored token.
          report: Called from time to time.
          log: Has the scores of texts that are finished, and gets the others; None for no log.
        """
        scores, starts = np.zeros(len(rows)), np.asarray(starts)
        finished = {} if log is None else log.scores
        scores[list(finished)] = list(finished.values())
        if finished:
            report(len(finished))
        # Groups are finished as a whole, so that the others are those of an uninterrupted command.
        pending = np.array([n for n in range(len(rows)) if n not in finished], np.int64)
        lengths = [len(rows[n]) + self.num_special for n in pending]
        for length, chosen in _batches(lengths, self._group_size(batch_size)):
            longest, numbers = int(min(length, self.max_length)), pending[chosen]
            group = [rows[n] for n in numbers]
            scores[numbers] = self._score_group(group, starts[numbers], longest, batch_size)
            if log is not None:
                log.add(numbers, scores[numbers])
            report(len(numbers))
        return scores.tolist()

    @abc.abstractmethod
    def _group_size(self, batch_size: int) -> int:
        """Maximum number of texts of one padded length that are scored together."""

    @abc.abstractmethod
    def _score_group(
        self,
        rows: Sequence[Sequence[int]],
        starts: Int[np.ndarray, " n"],
        length: int,
        batch_size: int,
    ) -> Float[np.ndarray, " n"]:
        """As `score`, of texts that are padded to `length`."""


def load(model: str | pretrained.Pretrained, precision: str, *, within_word: bool) -> Scorer:
    """Loads the scorer of a causal or a masked language model.

    Args:
      model: RUN, RUN@STEP or RUN@best, or a loaded model; see `pretrained.load`.
      precision: As `config.model.precision`.
      within_word: Whether the later tokens of a word are masked too.

    Raises:
      UserError: the run has no such objective, or `within_word` is set for a causal model.
    """
    run = pretrained.load(model)
    if language_model.OBJECTIVE in run.source.config.get("objectives", {}):
        if within_word:
            raise UserError("within_word applies to masked language models: got a causal one")
        return CausalScorer(language_model.load(run, precision))
    return MaskedScorer(
        *fill_mask.load_masked_lm(run, precision),
        run.tokenizer,
        build.positions(run.config.model),
        build.cls_last(run.config.model),
        within_word,
    )


@dataclasses.dataclass(frozen=True)
class CausalScorer(Scorer):
    """Log likelihood of texts under a causal language model.

    Attributes:
      model: The model; its token for the end of a document precedes each text, if it has one.
        Without one, the first token of a text is not scored.
    """

    model: language_model.LanguageModel

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the run."""
        return self.model.tokenizer

    @property
    def max_length(self) -> float:
        """Maximum number of tokens of a sequence."""
        return self.model.max_length

    @property
    def num_special(self) -> int:
        """Special tokens of each sequence: the one that precedes the text."""
        return len(self._start)

    def _group_size(self, batch_size: int) -> int:
        return batch_size

    def _score_group(self, rows, starts, length, batch_size):
        ids, mask = pad_right([[*self._start, *row] for row in rows], length, batch_size)
        log_probs, _ = self.model.score_tokens(self.model.params, ids, mask)
        log_probs, mask = np.asarray(log_probs, np.float64)[: len(rows)], mask[: len(rows)]
        first = np.maximum(starts + self.num_special, 1)
        scored = mask & (np.arange(length) >= first[:, None])
        return np.where(scored[:, 1:], log_probs, 0).sum(axis=1)

    @property
    def _start(self) -> list[int]:
        return [] if self.model.end_id is None else [self.model.end_id]


@dataclasses.dataclass(frozen=True)
class MaskedScorer(Scorer):
    """Pseudo-log-likelihood of texts under a masked language model.

    Attributes:
      pretrainer: The model with its MLM objective.
      params: Parameters on the device.
      tokenizer: Tokenizer of the run.
      max_length: Maximum number of tokens of a sequence, including special tokens.
      cls_last: Whether [CLS] ends a sequence, as in XLNet.
      within_word: Whether the later tokens of a word are masked too.
    """

    pretrainer: Pretrainer
    params: Params
    tokenizer: Tokenizer
    max_length: float
    cls_last: bool
    within_word: bool

    @property
    def num_special(self) -> int:
        """Special tokens of each sequence, such as [CLS] and [SEP]."""
        return self._template.num_special_tokens(1)

    def _group_size(self, batch_size: int) -> int:
        return _CHUNK  # each text has as many sequences as scored tokens

    def _score_group(self, rows, starts, length, batch_size):
        sizes = np.array([len(ids) for ids in rows])
        frame, mask = self._template.frame_rows([sizes], length)
        frame.write(0, rows)
        ids = frame.ids.reshape(mask.shape)
        owner = np.repeat(np.arange(len(rows)), sizes)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        positions = self._template.segment_starts([sizes])[0][owner] + within
        last = self._last_masked(rows, positions)
        scored = within >= starts[owner]
        owner, positions, last = owner[scored], positions[scored], last[scored]
        scores = np.zeros(len(rows))
        for start in range(0, len(owner), batch_size):
            # The last batch is filled with its last sequence: one shape is compiled.
            chosen = np.minimum(np.arange(start, start + batch_size), len(owner) - 1)
            of, at = owner[chosen], positions[chosen]
            columns = np.arange(length)
            masked = (columns >= at[:, None]) & (columns <= last[chosen][:, None])
            batch = {
                "input_ids": np.where(masked, np.int32(self.tokenizer.mask_id), ids[of]),
                "attention_mask": mask[of],
                "mlm_positions": at[:, None].astype(np.int32),
            }
            found = np.asarray(self._run(self.params, batch, ids[of, at]), np.float64)
            count = min(batch_size, len(owner) - start)
            np.add.at(scores, of[:count], found[:count])
        return scores

    def _last_masked(
        self, rows: Sequence[Sequence[int]], positions: Int[np.ndarray, " tokens"]
    ) -> Int[np.ndarray, " tokens"]:
        """The last position that is masked with each token: its own, or the end of its word."""
        if not self.within_word:
            return positions
        begins = np.concatenate([self.tokenizer.begins_word(row) for row in rows])
        ends = np.append(np.flatnonzero(begins)[1:], len(begins)) - 1
        return positions[ends][np.cumsum(begins) - 1]

    @property
    def _template(self) -> SequenceTemplate:
        return SequenceTemplate.from_tokenizer(self.tokenizer, cls_last=self.cls_last)

    @functools.cached_property
    def _run(self):
        def run(params: Params, batch: Batch, labels: Int[Array, " B"]) -> Float[Array, " B"]:
            variables = {"params": params}
            logits = self.pretrainer.apply(variables, batch, method=fill_mask.masked_logits)[:, 0]
            log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
            return jnp.take_along_axis(log_probs, labels[:, None], axis=-1)[:, 0]

        return jax.jit(run)


def encode(scorer: Scorer, texts: Sequence[str]) -> list[list[int]]:
    """Returns the tokens of each text, without special tokens.

    Raises:
      UserError: a text is empty or too long.
    """
    rows = scorer.tokenizer.encode_batch(list(texts))
    for text, ids in zip(texts, rows, strict=True):
        if not ids:
            raise UserError(f"got a sentence without tokens, {text!r}: remove it")
        if len(ids) > scorer.max_tokens:
            raise UserError(
                f"a sentence is too long: got {len(ids):,} tokens, expected at most "
                f"{scorer.max_tokens:,}: {text[:60]!r}"
            )
    return rows


def _batches(
    lengths: Sequence[int], batch_size: int
) -> Iterator[tuple[int, Int[np.ndarray, " n"]]]:
    """Yields a padded length and the numbers of the sequences that have it, shortest first."""
    padded = -(-np.asarray(lengths) // _BUCKET) * _BUCKET
    for length in np.unique(padded):
        numbers = np.flatnonzero(padded == length)
        for start in range(0, len(numbers), batch_size):
            yield int(length), numbers[start : start + batch_size]
