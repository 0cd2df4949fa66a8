"""Score sentences by their log likelihood, or pseudo-log-likelihood for masked language models.

load      run -> the scorer that fits its objective
Scorer    sentences -> log probabilities in nats

The pseudo-log-likelihood sums the log probability of each token given all others, with the token
masked (Salazar et al. 2020). With `within_word` the later tokens of its word are masked as well:
otherwise the end of a long word reveals its beginning (Kauf and Ivanova 2023, PLL-word-l2r).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import build, pretrained
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.inference import fill_mask, language_model
from bertjax.inference.perplexity import pad_right
from bertjax.interfaces import Batch, Params, Tokenizer
from bertjax.pretrainer import Pretrainer

_BUCKET = 8
"""Sentences are padded to a multiple of this, so that few lengths are compiled."""
_CHUNK = 4096
"""Sentences whose rows are in memory at the same time."""

Report = Callable[[int], None]
"""Called with the number of scored sentences."""


class Scorer(Protocol):
    """Computes log probabilities of sentences."""

    def score(self, sentences: Sequence[str], batch_size: int, report: Report) -> list[float]:
        """Returns the log probability of each sentence, in nats.

        Args:
          sentences: Sentences.
          batch_size: Sequences per batch; a masked model has one for each token of a sentence.
          report: Called from time to time.

        Raises:
          UserError: a sentence is empty or too long.
        """
        ...


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
class CausalScorer:
    """Log likelihood of sentences under a causal language model.

    Attributes:
      model: The model; its token for the end of a document precedes each sentence, if it has one.
    """

    model: language_model.LanguageModel

    def score(self, sentences: Sequence[str], batch_size: int, report: Report) -> list[float]:
        """As `Scorer.score`."""
        model = self.model
        start = [] if model.end_id is None else [model.end_id]
        most = model.max_length - len(start)
        rows = [[*start, *ids] for ids in _encode(model.tokenizer, sentences, most)]
        scores = np.zeros(len(rows))
        for length, numbers in _batches([len(ids) for ids in rows], batch_size):
            longest = int(min(length, model.max_length))
            ids, mask = pad_right([rows[n] for n in numbers], longest, batch_size)
            log_probs = np.asarray(model.score_tokens(model.params, ids, mask)[0], np.float64)
            scores[numbers] = np.where(mask[:, 1:], log_probs, 0).sum(axis=1)[: len(numbers)]
            report(len(numbers))
        return scores.tolist()


@dataclasses.dataclass(frozen=True)
class MaskedScorer:
    """Pseudo-log-likelihood of sentences under a masked language model.

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

    def score(self, sentences: Sequence[str], batch_size: int, report: Report) -> list[float]:
        """As `Scorer.score`."""
        scores = np.zeros(len(sentences))
        for first in range(0, len(sentences), _CHUNK):
            chunk = sentences[first : first + _CHUNK]
            special = self._template.num_special_tokens(1)
            rows = _encode(self.tokenizer, chunk, self.max_length - special)
            # Sentences of one length are a group, each with as many sequences as tokens.
            for length, numbers in _batches([len(ids) + special for ids in rows], len(chunk)):
                longest = int(min(length, self.max_length))
                group = [rows[n] for n in numbers]
                scores[first + numbers] = self._score_group(group, longest, batch_size)
                report(len(numbers))
        return scores.tolist()

    def _score_group(
        self, rows: Sequence[Sequence[int]], length: int, batch_size: int
    ) -> Float[np.ndarray, " n"]:
        sizes = np.array([len(ids) for ids in rows])
        frame, mask = self._template.frame_rows([sizes], length)
        frame.write(0, rows)
        ids = frame.ids.reshape(mask.shape)
        owner = np.repeat(np.arange(len(rows)), sizes)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        positions = self._template.segment_starts([sizes])[0][owner] + within
        last = self._last_masked(ids, positions, owner, sizes)
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
        self,
        ids: Int[np.ndarray, "n L"],
        positions: Int[np.ndarray, " tokens"],
        owner: Int[np.ndarray, " tokens"],
        sizes: Int[np.ndarray, " n"],
    ) -> Int[np.ndarray, " tokens"]:
        """The last position that is masked with each token: its own, or the end of its word."""
        if not self.within_word:
            return positions
        begins = self.tokenizer.word_starts[ids[owner, positions]]
        begins[np.cumsum(sizes) - sizes] = True
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


def _encode(tokenizer: Any, sentences: Sequence[str], most: float) -> list[list[int]]:
    rows = tokenizer.encode_batch(list(sentences))
    for sentence, ids in zip(sentences, rows, strict=True):
        if not ids:
            raise UserError(f"got a sentence without tokens, {sentence!r}: remove it")
        if len(ids) > most:
            raise UserError(
                f"a sentence is too long: got {len(ids):,} tokens, expected at most {most:,}: "
                f"{sentence[:60]!r}"
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
