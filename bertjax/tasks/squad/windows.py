"""Encode questions with windows of their contexts, and find answer spans from start and end scores.

A sequence is [CLS] question [SEP] window [SEP], or question [SEP] window [SEP] [CLS] for models
with [CLS] last; between question and window are as many [SEP] as the tokenizer uses for pairs. A
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
from bertjax.errors import UserError
from bertjax.tasks.sequences import Pairs
from bertjax.tasks.squad.files import SquadQuestions

_LENGTH_COUNTS = 0.01
"""What a token more of a window is worth where a token's context is compared (`run_squad.py`)."""


@dataclasses.dataclass(frozen=True)
class AnswerWindows:
    """The windows of all questions, those of a question one after the other.

    Attributes:
      pairs: The sequences.
      question: Which question each window is of.
      context_begin: Where the window of the context begins in its sequence.
      context_end: Where it ends there: the place behind its last token.
      first: Which token of the context is the window's first one.
      first_span: Where that token's characters stand in `spans`.
      spans: From which character, up to which, each token of every context reaches.
      labels: The first and the last token of the answer in the sequence, and [CLS] for both where
        it is not wholly in the window or there is none; None of questions without labels.
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
        """Where [CLS] stands in each sequence."""
        return _cls_places(self.pairs.lengths, self.pairs.cls_last)

    def characters(
        self, windows: Int[np.ndarray, " m"], places: Int[np.ndarray, " m"]
    ) -> Int32[np.ndarray, "m 2"]:
        """From which character of its context, up to which, each token of a context reaches."""
        return self.spans[self.first_span[windows] + places - self.context_begin[windows]]

    @functools.cached_property
    def maximum_context(self) -> Bool[np.ndarray, " T"]:
        """For each of `pairs.tokens`, whether of all windows this one shows most around it.

        That is the window that has most tokens on the token's poorer side, where a hundred of its
        tokens count as one of these; of equal ones the first. False outside the contexts.
        """
        sizes = self.context_end - self.context_begin
        left = ranges(np.zeros_like(sizes), sizes)
        window = np.repeat(np.arange(len(sizes)), sizes)
        worth = np.minimum(left, sizes[window] - 1 - left) + _LENGTH_COUNTS * sizes[window]
        ends = np.zeros(int(self.question.max()) + 1, np.int64)
        np.maximum.at(ends, self.question, self.first + sizes)
        token = ranges(offsets(ends)[self.question] + self.first, sizes)
        most = np.full(int(ends.sum()), -np.inf)
        np.maximum.at(most, token, worth)
        winner = np.full(len(most), len(sizes))
        best = worth == most[token]
        np.minimum.at(winner, token[best], window[best])
        shown = np.zeros(len(self.pairs.tokens), bool)
        shown[ranges(self.pairs.starts + self.context_begin, sizes)] = winner[token] == window
        return shown


def encode(
    questions: SquadQuestions,
    tokenizer,
    *,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    cls_last: bool = False,
    source: str = "",
) -> AnswerWindows:
    """Tokenizes questions and contexts and puts them together, window by window.

    Args:
      questions: The questions.
      tokenizer: A tokenizer with [CLS], [SEP] and `encode_with_offsets`.
      max_seq_length: Tokens of the longest sequence.
      doc_stride: By how many tokens of the context each window moves on.
      max_query_length: Tokens of a question; longer ones lose their ends.
      cls_last: Whether [CLS] ends the sequences.
      source: The file of the questions, for the error.

    Raises:
      UserError: windows would not fit, or would pass over tokens, or a context has no token.
    """
    _check(tokenizer, max_seq_length, doc_stride, max_query_length)
    asked = _Texts.of(
        [row[:max_query_length] for row in tokenizer.encode_batch(questions.questions)]
    )
    encoded = [tokenizer.encode_with_offsets(context) for context in questions.contexts]
    read = _Texts.of([ids for ids, _ in encoded])
    _refuse_nothing(questions, read.sizes, source)
    flat = itertools.chain.from_iterable(itertools.chain.from_iterable(s for _, s in encoded))
    spans = np.fromiter(flat, np.int32, 2 * len(read.ids)).reshape(-1, 2)

    specials = 2 + tokenizer.pair_separators
    room = max_seq_length - specials - asked.sizes
    question, first, sizes = _cut(read.sizes[questions.context_of], room, doc_stride)
    first_span = read.at[questions.context_of[question]] + first
    lengths = specials + asked.sizes[question] + sizes
    starts, cls = offsets(lengths)[:-1], _cls_places(lengths, cls_last)
    begin = 0 if cls_last else 1
    context_begin = begin + asked.sizes[question] + tokenizer.pair_separators

    tokens = np.full(int(lengths.sum()), tokenizer.sep_id, np.int32)
    tokens[starts + cls] = tokenizer.cls_id
    places = ranges(starts + begin, asked.sizes[question])
    tokens[places] = asked.ids[ranges(asked.at[question], asked.sizes[question])]
    tokens[ranges(starts + context_begin, sizes)] = read.ids[ranges(first_span, sizes)]

    labels = None
    if questions.labelled:
        answers = _answer_tokens(questions, spans, read.at)[question] - first[:, None]
        inside = (answers[:, 0] >= 0) & (answers[:, 1] < sizes)
        labels = np.where(inside[:, None], context_begin[:, None] + answers, cls[:, None])
        labels = labels.astype(np.int32)
    return AnswerWindows(
        pairs=Pairs(
            tokens=tokens,
            starts=starts,
            lengths=lengths,
            first_lengths=begin + asked.sizes[question] + 1,
            pad_id=tokenizer.pad_id,
            cls_last=cls_last,
        ),
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
    """Tokens of many texts end to end; where each begins and the last one ends."""

    ids: Int32[np.ndarray, " T"]
    at: Int64[np.ndarray, " n_and_1"]

    @classmethod
    def of(cls, rows: Sequence[list[int]]) -> "_Texts":
        at = offsets(np.array([len(row) for row in rows], np.int64))
        return cls(np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(at[-1])), at)

    @property
    def sizes(self) -> Int64[np.ndarray, " n"]:
        return np.diff(self.at)


def _cut(
    sizes: Int64[np.ndarray, " n"], room: Int64[np.ndarray, " n"], stride: int
) -> tuple[Int64[np.ndarray, " w"], Int64[np.ndarray, " w"], Int64[np.ndarray, " w"]]:
    """Of every window the question, its first token of the context and how many there are.

    The last window of a question is the first one that reaches the context's end.
    """
    counts = 1 + np.maximum(0, -((room - sizes) // stride))
    question = np.repeat(np.arange(len(sizes)), counts)
    first = ranges(np.zeros_like(counts), counts) * stride
    return question, first, np.minimum(sizes[question] - first, room[question])


def _check(tokenizer, max_seq_length: int, doc_stride: int, max_query_length: int) -> None:
    if tokenizer.cls_id is None or tokenizer.sep_id is None:
        raise UserError(
            "the tokenizer has no [CLS] and [SEP] tokens: answering questions requires both; "
            "take one "
            "that has"
        )
    if max_query_length < 1:
        raise UserError(f"max_query_length={max_query_length}: expected 1 or more tokens")
    taken = 2 + tokenizer.pair_separators + max_query_length
    room = max_seq_length - taken
    if room < 1:
        raise UserError(
            f"max_seq_length={max_seq_length} leaves no room for a context beside "
            f"max_query_length={max_query_length}: expected {taken + 1} or more"
        )
    if not 1 <= doc_stride <= room:
        raise UserError(
            f"doc_stride={doc_stride}: windows of max_seq_length={max_seq_length} hold {room} "
            f"tokens of a context beside max_query_length={max_query_length}, so that more would "
            f"pass over some: expected 1 to {room}"
        )


def _refuse_nothing(questions: SquadQuestions, sizes: Int64[np.ndarray, " c"], source: str) -> None:
    empty = np.flatnonzero(sizes[questions.context_of] == 0)
    if len(empty):
        place = f"{source}: " if source else ""
        raise UserError(
            f"{place}question {questions.ids[empty[0]]!r}: the tokenizer finds no token in its "
            f"context, nor in that of {len(empty) - 1} other question(s): expected text that it "
            "can read; fix the file or take another tokenizer"
        )


def _cls_places(lengths: Int64[np.ndarray, " n"], cls_last: bool) -> Int64[np.ndarray, " n"]:
    return lengths - 1 if cls_last else np.zeros_like(lengths)


def _answer_tokens(
    questions: SquadQuestions,
    spans: Int32[np.ndarray, "S 2"],
    contexts_at: Int64[np.ndarray, " c_and_1"],
) -> Int64[np.ndarray, "n 2"]:
    """The first and the last token of its context that have part in a question's first answer.

    Both are -1 where there is none: no answer, no known place, no token for any of its characters.
    """
    # Characters are counted through all contexts, so that one search finds the answers of all.
    characters_at = offsets(np.array([len(text) + 1 for text in questions.contexts], np.int64))
    shift = np.repeat(characters_at[:-1], np.diff(contexts_at))
    begins, ends = np.maximum.accumulate(spans + shift[:, None], axis=0).T
    shifted = questions.first_answers() + characters_at[questions.context_of][:, None]
    first = np.searchsorted(ends, shifted[:, 0], side="right")
    last = np.searchsorted(begins, shifted[:, 1], side="left") - 1
    # Before each context is a gap of one character, which is where unknown answers are looked for.
    there = first <= last
    tokens = np.stack([first, last], axis=1) - contexts_at[questions.context_of][:, None]
    return np.where(there[:, None], tokens, -1)


_WINDOWS_AT_A_TIME = 1024
"""Bounds the memory of all pairs of places: some megabytes."""


class Found(NamedTuple):
    """A text and the scores (logits) of its first and its last token."""

    text: str
    start_score: float
    end_score: float

    @property
    def score(self) -> float:
        return self.start_score + self.end_score


@dataclasses.dataclass(frozen=True)
class Spans:
    """All spans that may be answers, those of a question together, its best ones first.

    Attributes:
      window: In which window each is found.
      start: The place in its sequence of its first token.
      end: That of its last token.
      start_score: What the first one is scored with.
      end_score: What the last one is scored with.
    """

    window: Int64[np.ndarray, " s"]
    start: Int64[np.ndarray, " s"]
    end: Int64[np.ndarray, " s"]
    start_score: Float64[np.ndarray, " s"]
    end_score: Float64[np.ndarray, " s"]

    @classmethod
    def among(
        cls,
        windows: AnswerWindows,
        start_scores: Float[np.ndarray, "n K"],
        start_places: Int[np.ndarray, "n K"],
        end_scores: Float[np.ndarray, "n J"],
        end_places: Int[np.ndarray, "n J"],
        max_answer_length: int,
    ) -> "Spans":
        """All pairs of places that BERT's rules allow; of equal scores the first pairs first."""
        starts_well = _may_start(windows, start_places) & (start_scores > -np.inf)
        ends_well = _inside(windows, end_places) & (end_scores > -np.inf)
        found = []
        for begin in range(0, len(windows), _WINDOWS_AT_A_TIME):
            rows = slice(begin, begin + _WINDOWS_AT_A_TIME)
            length = end_places[rows, None, :] - start_places[rows, :, None] + 1
            allowed = starts_well[rows, :, None] & ends_well[rows, None, :]
            row, i, j = np.nonzero(allowed & (length >= 1) & (length <= max_answer_length))
            found.append((row + begin, i, j))
        window, i, j = (np.concatenate(column) for column in zip(*found, strict=True))
        start_score = start_scores[window, i].astype(np.float64)
        end_score = end_scores[window, j].astype(np.float64)
        order = np.lexsort((-(start_score + end_score), windows.question[window]))
        columns = (window, start_places[window, i], end_places[window, j], start_score, end_score)
        return cls(*(column[order] for column in columns))

    def texts(self, questions: SquadQuestions, windows: AnswerWindows) -> Iterator[Iterator[Found]]:
        """For every question the texts of its spans as they are written, some several times."""
        begins = windows.characters(self.window, self.start)[:, 0]
        ends = windows.characters(self.window, self.end)[:, 1]
        numbers = np.arange(len(questions) + 1)
        bounds = np.searchsorted(windows.question[self.window], numbers).tolist()
        for number, context in enumerate(questions.context_of):
            spans = range(bounds[number], bounds[number + 1])
            yield self._cut(questions.contexts[context], spans, begins, ends)

    def _cut(
        self,
        context: str,
        spans: range,
        begins: Int[np.ndarray, " s"],
        ends: Int[np.ndarray, " s"],
    ) -> Iterator[Found]:
        for span in spans:
            # Tokens that cover nothing may stand at the ends.
            if text := context[begins[span] : ends[span]].strip():
                yield Found(text, float(self.start_score[span]), float(self.end_score[span]))


def _inside(windows: AnswerWindows, places: Int[np.ndarray, "n K"]) -> Bool[np.ndarray, "n K"]:
    """Whether places lie in the context part of their window."""
    begin, end = windows.context_begin[:, None], windows.context_end[:, None]
    return (places >= begin) & (places < end)


def _may_start(windows: AnswerWindows, places: Int[np.ndarray, "n K"]) -> Bool[np.ndarray, "n K"]:
    """Whether tokens lie there and have their maximum context in this window."""
    inside = _inside(windows, places)
    tokens = windows.pairs.starts[:, None] + np.where(inside, places, 0)
    return inside & windows.maximum_context[tokens]
