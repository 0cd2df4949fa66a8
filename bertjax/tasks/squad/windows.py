"""Encode questions with windows of their contexts, and find answer spans from start and end scores.

A sequence is [CLS] question [SEP] window [SEP], or question [SEP] window [SEP] [CLS] for models
with [CLS] last (XLNet); the tokenizer determines the number of [SEP] between question and window. A
context that is too long is split into overlapping windows (Devlin et al. 2019, the released
`run_squad.py`).
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64

from bertjax.data.layout import offsets, ranges
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.tasks.sequences import Pairs
from bertjax.tasks.squad.files import SquadQuestions

_LENGTH_WEIGHT = 0.01
"""Weight of the window length in the score of a token's context (`run_squad.py`)."""


@dataclasses.dataclass(frozen=True)
class AnswerWindows:
    """The windows of all questions, grouped by question.

    Attributes:
      pairs: The sequences, one per window.
      question: The index of each window's question.
      context_begin: Position in the sequence of the first token of the context.
      context_end: Position in the sequence after the last token of the context.
      first: Index in the context of the window's first token.
      first_span: Index in `spans` of that token.
      spans: Character range in its context of each token of every context.
      labels: Positions of the first and last token of the answer; that of [CLS] for both if the
        answer is not entirely in the window or does not exist. None for unlabelled questions.
    """

    pairs: Pairs
    question: Int64[np.ndarray, " n"]
    context_begin: Int64[np.ndarray, " n"]
    context_end: Int64[np.ndarray, " n"]
    first: Int64[np.ndarray, " n"]
    first_span: Int64[np.ndarray, " n"]
    spans: Int32[np.ndarray, "S 2"]
    labels: Int32[np.ndarray, "n 2"] | None

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def cls(self) -> Int64[np.ndarray, " n"]:
        """The position of [CLS] in each sequence."""
        return self.pairs.cls_positions

    def characters(
        self, windows: Int[np.ndarray, " m"], positions: Int[np.ndarray, " m"]
    ) -> Int32[np.ndarray, "m 2"]:
        """Returns the character ranges in their contexts of tokens at these positions.

        Args:
          windows: Indices of windows.
          positions: Positions in the sequences of these windows.
        """
        return self.spans[self.first_span[windows] + positions - self.context_begin[windows]]

    @functools.cached_property
    def maximum_context(self) -> Bool[np.ndarray, " T"]:
        """For each of `pairs.tokens`, whether this window has the maximum context of the token.

        A window's score for a token is the minimum of its left and right context, plus 0.01 times
        the length of the window, as in `run_squad.py`; of equal scores the first window wins. False
        outside the contexts.
        """
        sizes = self.context_end - self.context_begin
        left = ranges(np.zeros_like(sizes), sizes)
        window = np.repeat(np.arange(len(sizes)), sizes)
        score = np.minimum(left, sizes[window] - 1 - left) + _LENGTH_WEIGHT * sizes[window]
        ends = np.zeros(int(self.question.max()) + 1, np.int64)
        np.maximum.at(ends, self.question, self.first + sizes)
        token = ranges(offsets(ends)[self.question] + self.first, sizes)
        most = np.full(int(ends.sum()), -np.inf)
        np.maximum.at(most, token, score)
        winner = np.full(len(most), len(sizes))
        best = score == most[token]
        np.minimum.at(winner, token[best], window[best])
        shown = np.zeros(len(self.pairs.tokens), bool)
        shown[ranges(self.pairs.starts + self.context_begin, sizes)] = winner[token] == window
        return shown


def encode(
    questions: SquadQuestions,
    tokenizer: Tokenizer,
    *,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    cls_last: bool = False,
    source: str = "",
) -> AnswerWindows:
    """Tokenizes questions and contexts into one sequence per question and window.

    Args:
      questions: The questions.
      tokenizer: A tokenizer with [CLS], [SEP] and `encode_with_offsets`.
      max_seq_length: Maximum length of a sequence in tokens.
      doc_stride: Stride of the windows, in tokens of the context.
      max_query_length: Maximum length of a question in tokens; longer ones are truncated.
      cls_last: Whether [CLS] is the last token of each sequence.
      source: The file of the questions, for error messages.

    Raises:
      UserError: the lengths leave no room for a context, the stride would skip tokens, or a context
        has no token.
    """
    _check(tokenizer, max_seq_length, doc_stride, max_query_length)
    queries = _Texts.from_rows(
        [row[:max_query_length] for row in tokenizer.encode_batch(questions.questions)]
    )
    encoded = [tokenizer.encode_with_offsets(context) for context in questions.contexts]
    contexts = _Texts.from_rows([ids for ids, _ in encoded])
    _check_contexts(questions, contexts.sizes, source)
    flat = itertools.chain.from_iterable(itertools.chain.from_iterable(s for _, s in encoded))
    spans = np.fromiter(flat, np.int32, 2 * len(contexts.ids)).reshape(-1, 2)

    template = SequenceTemplate.from_tokenizer(tokenizer, cls_last=cls_last)
    capacity = max_seq_length - template.num_special_tokens(2) - queries.sizes
    question, first, sizes = _split_contexts(
        contexts.sizes[questions.context_of], capacity, doc_stride
    )
    first_span = contexts.offsets[questions.context_of[question]] + first
    lengths = queries.sizes[question], sizes
    frame = template.frame(lengths)
    frame.write(0, queries.slices(queries.offsets[question], lengths[0]))
    frame.write(1, contexts.slices(first_span, sizes))
    context_begin = frame.segment_starts[1]

    labels = None
    if questions.labelled:
        answers = (
            _answer_token_ranges(questions, spans, contexts.offsets)[question] - first[:, None]
        )
        inside = (answers[:, 0] >= 0) & (answers[:, 1] < sizes)
        labels = np.where(
            inside[:, None], context_begin[:, None] + answers, frame.cls_positions[:, None]
        )
        labels = labels.astype(np.int32)
    return AnswerWindows(
        pairs=Pairs.from_frame(frame, template),
        question=question,
        context_begin=context_begin,
        context_end=context_begin + sizes,
        first=first,
        first_span=first_span,
        spans=spans,
        labels=labels,
    )


@dataclasses.dataclass(frozen=True)
class _Texts:
    """Token ids of many texts, concatenated, with the offset of each and the total."""

    ids: Int32[np.ndarray, " T"]
    offsets: Int64[np.ndarray, " n_and_1"]

    @classmethod
    def from_rows(cls, rows: Sequence[list[int]]) -> "_Texts":
        at = offsets(np.array([len(row) for row in rows], np.int64))
        return cls(np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(at[-1])), at)

    @property
    def sizes(self) -> Int64[np.ndarray, " n"]:
        return np.diff(self.offsets)

    def slices(
        self, starts: Int64[np.ndarray, " m"], sizes: Int64[np.ndarray, " m"]
    ) -> Iterator[Int32[np.ndarray, " t"]]:
        """Yields slices of `ids`."""
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            yield self.ids[start : start + size]


def _split_contexts(
    sizes: Int64[np.ndarray, " n"], capacity: Int64[np.ndarray, " n"], stride: int
) -> tuple[Int64[np.ndarray, " w"], Int64[np.ndarray, " w"], Int64[np.ndarray, " w"]]:
    """Splits contexts into windows.

    The last window of a question is the first one that reaches the end of the context.

    Args:
      sizes: Length of each question's context in tokens.
      capacity: Tokens of the context that fit into a sequence of each question.
      stride: Stride of the windows in tokens.

    Returns:
      For every window the index of the question, its first token in the context, and its length.
    """
    counts = 1 + np.maximum(0, -((capacity - sizes) // stride))
    question = np.repeat(np.arange(len(sizes)), counts)
    first = ranges(np.zeros_like(counts), counts) * stride
    return question, first, np.minimum(sizes[question] - first, capacity[question])


def _check(
    tokenizer: Tokenizer, max_seq_length: int, doc_stride: int, max_query_length: int
) -> None:
    if tokenizer.cls_id is None or tokenizer.sep_id is None:
        raise UserError(
            "the tokenizer has no [CLS] and [SEP] tokens: question answering requires both; use a "
            "tokenizer that has them"
        )
    if max_query_length < 1:
        raise UserError(f"max_query_length: got {max_query_length}, expected >= 1")
    specials = SequenceTemplate.from_tokenizer(tokenizer).num_special_tokens(2)
    num_reserved = specials + max_query_length
    capacity = max_seq_length - num_reserved
    if capacity < 1:
        raise UserError(
            f"max_seq_length={max_seq_length} leaves no room for a context next to "
            f"max_query_length={max_query_length}: expected >= {num_reserved + 1}"
        )
    if not 1 <= doc_stride <= capacity:
        raise UserError(
            f"doc_stride: got {doc_stride}, expected an integer in [1, {capacity}], the tokens of "
            f"a context that fit into max_seq_length={max_seq_length} next to max_query_length="
            f"{max_query_length}; a larger stride skips tokens"
        )


def _check_contexts(questions: SquadQuestions, sizes: Int64[np.ndarray, " c"], source: str) -> None:
    empty = np.flatnonzero(sizes[questions.context_of] == 0)
    if len(empty):
        place = f"{source}: " if source else ""
        raise UserError(
            f"{place}question {questions.ids[empty[0]]!r}: its context has no tokens, like "
            f"those of {len(empty) - 1} other question(s); fix the file or use another tokenizer"
        )


def _answer_token_ranges(
    questions: SquadQuestions,
    spans: Int32[np.ndarray, "S 2"],
    contexts_at: Int64[np.ndarray, " c_and_1"],
) -> Int64[np.ndarray, "n 2"]:
    """Returns the first and last token, in its context, of each question's first answer.

    Both are -1 if there is no answer, its location is unknown, or its characters have no token.
    """
    # Character offsets are global over all contexts, so that one search finds all answers.
    characters_at = offsets(np.array([len(text) + 1 for text in questions.contexts], np.int64))
    shift = np.repeat(characters_at[:-1], np.diff(contexts_at))
    begins, ends = np.maximum.accumulate(spans + shift[:, None], axis=0).T
    answer_bounds = questions.first_answers() + characters_at[questions.context_of][:, None]
    first = np.searchsorted(ends, answer_bounds[:, 0], side="right")
    last = np.searchsorted(begins, answer_bounds[:, 1], side="left") - 1
    # Each context is followed by a gap of one character: UNKNOWN, -1, falls into the gap before.
    exists = first <= last
    tokens = np.stack([first, last], axis=1) - contexts_at[questions.context_of][:, None]
    return np.where(exists[:, None], tokens, -1)


_WINDOWS_PER_CHUNK = 1024
"""Bounds the memory of all pairs of positions to some megabytes."""


class ScoredAnswer(NamedTuple):
    """A candidate answer and the scores (logits) of its first and last token."""

    text: str
    start_score: float
    end_score: float

    @property
    def score(self) -> float:
        return self.start_score + self.end_score


@dataclasses.dataclass(frozen=True)
class Spans:
    """All valid answer spans, grouped by question, in descending order of score.

    Attributes:
      window: The index of each span's window.
      start: Position in the sequence of the first token.
      end: Position in the sequence of the last token.
      start_score: Logit of the first token.
      end_score: Logit of the last token.
    """

    window: Int64[np.ndarray, " s"]
    start: Int64[np.ndarray, " s"]
    end: Int64[np.ndarray, " s"]
    start_score: Float64[np.ndarray, " s"]
    end_score: Float64[np.ndarray, " s"]

    @classmethod
    def from_scores(
        cls,
        windows: AnswerWindows,
        start_scores: Float[np.ndarray, "n K"],
        start_positions: Int[np.ndarray, "n K"],
        end_scores: Float[np.ndarray, "n J"],
        end_positions: Int[np.ndarray, "n J"],
        max_answer_length: int,
    ) -> "Spans":
        """Builds all valid spans from the best positions of each window (stable sort).

        Args:
          windows: The windows.
          start_scores: Logits of the K best start positions of each window.
          start_positions: These positions.
          end_scores: Logits of the J best end positions of each window.
          end_positions: These positions.
          max_answer_length: Maximum length of a span in tokens.
        """
        starts_well = _may_start(windows, start_positions) & (start_scores > -np.inf)
        ends_well = _inside(windows, end_positions) & (end_scores > -np.inf)
        found = []
        for begin in range(0, len(windows), _WINDOWS_PER_CHUNK):
            rows = slice(begin, begin + _WINDOWS_PER_CHUNK)
            length = end_positions[rows, None, :] - start_positions[rows, :, None] + 1
            allowed = starts_well[rows, :, None] & ends_well[rows, None, :]
            row, i, j = np.nonzero(allowed & (length >= 1) & (length <= max_answer_length))
            found.append((row + begin, i, j))
        window, i, j = (np.concatenate(column) for column in zip(*found, strict=True))
        start_score = start_scores[window, i].astype(np.float64)
        end_score = end_scores[window, j].astype(np.float64)
        order = np.lexsort((-(start_score + end_score), windows.question[window]))
        columns = (
            window,
            start_positions[window, i],
            end_positions[window, j],
            start_score,
            end_score,
        )
        return cls(*(column[order] for column in columns))

    def texts(
        self, questions: SquadQuestions, windows: AnswerWindows
    ) -> Iterator[Iterator[ScoredAnswer]]:
        """Yields for every question the texts of its spans, exact and possibly repeated."""
        begins = windows.characters(self.window, self.start)[:, 0]
        ends = windows.characters(self.window, self.end)[:, 1]
        numbers = np.arange(len(questions) + 1)
        bounds = np.searchsorted(windows.question[self.window], numbers).tolist()
        for number, context in enumerate(questions.context_of):
            spans = range(bounds[number], bounds[number + 1])
            yield self._extract_answers(questions.contexts[context], spans, begins, ends)

    def _extract_answers(
        self,
        context: str,
        spans: range,
        begins: Int[np.ndarray, " s"],
        ends: Int[np.ndarray, " s"],
    ) -> Iterator[ScoredAnswer]:
        for span in spans:
            # Empty if all tokens of the span cover only white space.
            if text := context[begins[span] : ends[span]].strip():
                yield ScoredAnswer(text, float(self.start_score[span]), float(self.end_score[span]))


def _inside(windows: AnswerWindows, positions: Int[np.ndarray, "n K"]) -> Bool[np.ndarray, "n K"]:
    """Returns whether positions are in the context part of their window."""
    begin, end = windows.context_begin[:, None], windows.context_end[:, None]
    return (positions >= begin) & (positions < end)


def _may_start(
    windows: AnswerWindows, positions: Int[np.ndarray, "n K"]
) -> Bool[np.ndarray, "n K"]:
    """Returns whether positions are in the context and have their maximum context here."""
    inside = _inside(windows, positions)
    tokens = windows.pairs.starts[:, None] + np.where(inside, positions, 0)
    return inside & windows.maximum_context[tokens]
