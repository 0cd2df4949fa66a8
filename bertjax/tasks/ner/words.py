"""Encode tagged sentences: [CLS] tokens [SEP], and the position of each word's prediction.

A word is predicted at its first piece (Devlin et al. 2019, section 5.3). A sentence that is too
long is cut between words into several sequences, so that every word of it is predicted once. With
the context of the document a sequence is filled up with neighbouring words on both sides, which
are read and not predicted.
"""

import bisect
import dataclasses
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
from jaxtyping import Int, Int32, Int64, Shaped

from bertjax.data.characters import Spelling
from bertjax.errors import UserError
from bertjax.tasks.ner.conll import Sentence
from bertjax.tasks.sequences import Pairs, token_budget


@dataclasses.dataclass(frozen=True)
class TaggedWords:
    """The sequences of tagged sentences.

    The column `token_labels` is 1 + the number of the tag at the first piece of each word that is
    predicted there, and 0 elsewhere.

    Attributes:
      pairs: The sequences.
      sizes: How many words each sentence has.
      sequences: The sequence in which each word of all sentences is predicted.
      places: Its place in that sequence.
    """

    pairs: Pairs
    sizes: Int64[np.ndarray, " s"]
    sequences: Int64[np.ndarray, " w"]
    places: Int64[np.ndarray, " w"]

    def by_sentence(
        self, values: Shaped[np.ndarray, "n L *rest"]
    ) -> list[Shaped[np.ndarray, "words *rest"]]:
        """Of a value for each place of each sequence those of the words, sentence by sentence."""
        return np.split(values[self.sequences, self.places], np.cumsum(self.sizes)[:-1])


def encode(
    sentences: Sequence[Sentence],
    tokenizer,
    max_seq_length: int,
    *,
    tag_names: Sequence[str],
    cls_last: bool = False,
    max_chars_per_word: int = 0,
    document_context: bool = False,
) -> TaggedWords:
    """Tokenizes words one by one and puts sentences into sequences.

    Args:
      sentences: In the order of their documents.
      tokenizer: An `interfaces.Tokenizer` with [CLS] and [SEP].
      max_seq_length: Longer sentences are cut; of a word that is longer alone, the end is left out.
      tag_names: All tags; a tag's number is its place among them.
      cls_last: Whether [CLS] ends the sequences.
      max_chars_per_word: Characters of each token, as `char_ids`; 0 for none.
      document_context: Whether sequences are filled up with the words around them, so many on both
        sides as the document has and as fit.

    Raises:
      UserError: the tokenizer lacks a token that is needed, or not even one token would fit.
    """
    budget = token_budget(tokenizer, 1, max_seq_length)
    words = _Words.of(sentences, tokenizer, budget, max_chars_per_word)
    sizes = np.array([len(sentence) for sentence in sentences], np.int64)
    predicted = list(_cut(words.ends, sizes, budget))
    read = predicted
    if document_context:
        documents = [sentence.document for sentence in sentences]
        read = list(_with_context(words.ends, predicted, _documents(sizes, documents), budget))
    numbers = {name: number for number, name in enumerate(tag_names)}
    labels = [1 + numbers[tag] for sentence in sentences for tag in sentence.tags]
    sequences = np.repeat(np.arange(len(predicted)), [end - begin for begin, end in predicted])
    origins = np.array([words.ends[begin] for begin, _ in read], np.int64)
    places = np.array(words.ends[:-1], np.int64) - origins[sequences] + (0 if cls_last else 1)
    pairs = _pairs(words, read, tokenizer, cls_last)
    token_labels = np.zeros(len(pairs.tokens), np.int32)
    token_labels[pairs.starts[sequences] + places] = labels
    pairs = dataclasses.replace(pairs, columns={**pairs.columns, "token_labels": token_labels})
    return TaggedWords(pairs, sizes, sequences, places)


_Range = tuple[int, int]
"""The first of some words and the one behind the last, counted over all sentences."""


@dataclasses.dataclass(frozen=True)
class _Words:
    """The pieces of all words, end to end.

    Attributes:
      pieces: Their ids.
      ends: Where the pieces of each word end; 0 comes first.
      characters: A number for each piece of a row of `table`; none without a table.
      table: The characters of pieces, for models that read these.
      ends_spelled: The numbers of [CLS] and [SEP].
    """

    pieces: Int32[np.ndarray, " t"]
    ends: list[int]
    characters: Int32[np.ndarray, " t"] | None = None
    table: np.ndarray | None = None
    ends_spelled: tuple[int, int] = (0, 0)

    @classmethod
    def of(
        cls, sentences: Sequence[Sentence], tokenizer, max_length: int, max_chars_per_word: int
    ) -> "_Words":
        """Tokenizes every different word once, as it is tokenized inside a text: behind a space."""
        words = [word for sentence in sentences for word in sentence.words]
        texts = {word: f" {word}" for word in words}
        encoded = tokenizer.encode_batch(list(texts.values()))
        stand_in = _stand_in(tokenizer, dict(zip(texts, encoded, strict=True)))
        known = _cut_words(texts, encoded, stand_in, max_length)
        pieces = _end_to_end(words, known)
        ends = np.cumsum([0, *(len(known[word]) for word in words)]).tolist()
        if not max_chars_per_word:
            return cls(pieces, ends)
        spelling = Spelling(tokenizer, max_chars_per_word)
        spelled = _cut_words(
            texts, spelling.numbers(list(texts.values())), spelling.number(stand_in), max_length
        )
        specials = spelling.number(tokenizer.cls_id), spelling.number(tokenizer.sep_id)
        return cls(pieces, ends, _end_to_end(words, spelled), spelling.table(), specials)


def _stand_in(tokenizer, encoded: dict[str, list[int]]) -> int:
    """What is read where a word has no piece, as one of control characters alone."""
    found = tokenizer.mask_id if tokenizer.unk_id is None else tokenizer.unk_id
    if found is not None:
        return found
    empty = next((word for word, ids in encoded.items() if not ids), None)
    if empty is not None:
        raise UserError(
            f"the word {empty!r} has no piece, and the tokenizer neither an unknown token nor "
            "[MASK] to stand for it; take the word out of the data"
        )
    return tokenizer.pad_id  # never read


def _cut_words(words, encoded: list[list[int]], stand_in: int, max_length: int):
    """The numbers of each word by the word, at least one and at most `max_length`."""
    pairs = zip(words, encoded, strict=True)
    return {word: numbers[:max_length] or [stand_in] for word, numbers in pairs}


def _end_to_end(words: list[str], numbers: dict[str, list[int]]) -> Int32[np.ndarray, " t"]:
    return np.fromiter(chain.from_iterable(numbers[word] for word in words), np.int32)


def _cut(ends: list[int], sizes: Int64[np.ndarray, " s"], budget: int):
    """Ranges of words that fit into a sequence: whole sentences, or parts of long ones."""
    begin = 0
    for end in np.cumsum(sizes).tolist():
        while begin < end:
            fits = bisect.bisect_right(ends, ends[begin] + budget, begin, end + 1) - 1
            yield begin, fits
            begin = fits


def _documents(sizes: Int64[np.ndarray, " s"], documents: list[int]) -> list[int]:
    """Where documents begin and end, counted in words."""
    last = [a != b for a, b in pairwise([*documents, None])]
    return [0, *np.cumsum(sizes)[np.array(last, bool)].tolist()]


def _with_context(ends: list[int], predicted: list[_Range], documents: list[int], budget: int):
    """The ranges and as many words around them as fit, none of another document.

    Half of what is free goes to each side; what one side has no words for goes to the other.
    """
    for begin, end in predicted:
        number = bisect.bisect_right(documents, begin)
        first, last = documents[number - 1], documents[number]
        free = budget - (ends[end] - ends[begin])
        left = bisect.bisect_left(ends, ends[begin] - free // 2, first, begin)
        right = bisect.bisect_right(ends, ends[left] + budget, end, last + 1) - 1
        # What the right could not use goes to the left.
        yield bisect.bisect_left(ends, ends[right] - budget, first, left), right


def _pairs(words: _Words, read: list[_Range], tokenizer, cls_last: bool) -> Pairs:
    """A sequence of each range."""
    sizes = np.array([words.ends[end] - words.ends[begin] for begin, end in read], np.int64)
    origins = np.array([words.ends[begin] for begin, _ in read], np.int64)
    lengths = sizes + 2
    starts = np.cumsum(lengths) - lengths
    columns, tables = {}, {}
    if words.table is not None:
        columns["char_ids"] = _framed(
            words.characters, origins, sizes, starts, words.ends_spelled, cls_last
        )
        tables["char_ids"] = words.table
    specials = tokenizer.cls_id, tokenizer.sep_id
    return Pairs(
        tokens=_framed(words.pieces, origins, sizes, starts, specials, cls_last),
        starts=starts,
        lengths=lengths,
        first_lengths=sizes + (1 if cls_last else 2),
        pad_id=tokenizer.pad_id,
        cls_last=cls_last,
        columns=columns,
        tables=tables,
    )


def _framed(
    numbers: Int32[np.ndarray, " t"],
    origins: Int[np.ndarray, " n"],
    sizes: Int[np.ndarray, " n"],
    starts: Int[np.ndarray, " n"],
    specials: tuple[int, int],
    cls_last: bool,
) -> Int32[np.ndarray, " T"]:
    """Stretches of `numbers` with [CLS] and [SEP] around each, end to end."""
    cls, sep = specials
    framed = np.empty(int(sizes.sum()) + 2 * len(sizes), np.int32)
    first = starts + (0 if cls_last else 1)
    for origin, size, begin in zip(origins.tolist(), sizes.tolist(), first.tolist(), strict=True):
        framed[begin : begin + size] = numbers[origin : origin + size]
    framed[first + sizes] = sep
    framed[first + sizes + 1 if cls_last else starts] = cls
    return framed
