"""Encode tagged sentences: [CLS] tokens [SEP], and the position of each word's prediction.

A word is predicted at its first token (Devlin et al. 2019, section 5.3). A sentence that exceeds
the maximum length is split between words into several sequences, so that every word is predicted
once. With document context, a sequence is filled with the neighbouring words on both sides, which
are read but not predicted.
"""

import bisect
import dataclasses
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
from jaxtyping import Int32, Int64, Shaped

from bertjax.data.characters import CharacterTable
from bertjax.data.sequence_template import Frame, SequenceTemplate
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.tasks.ner.conll import Sentence
from bertjax.tasks.sequences import Pairs, token_budget


@dataclasses.dataclass(frozen=True)
class TaggedWords:
    """Encoded tagged sentences.

    The column `token_labels` is 1 + the index of the tag at the first token of each predicted word,
    and 0 elsewhere.

    Attributes:
      pairs: The sequences.
      sizes: Number of words of each sentence.
      sequences: For each word of all sentences the sequence in which it is predicted.
      positions: For each word its position in that sequence.
    """

    pairs: Pairs
    sizes: Int64[np.ndarray, " s"]
    sequences: Int64[np.ndarray, " w"]
    positions: Int64[np.ndarray, " w"]

    def by_sentence(
        self, values: Shaped[np.ndarray, "n L *rest"]
    ) -> list[Shaped[np.ndarray, "words *rest"]]:
        """Selects the values of the words from values of all tokens, and splits by sentence."""
        return np.split(values[self.sequences, self.positions], np.cumsum(self.sizes)[:-1])


def encode(
    sentences: Sequence[Sentence],
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    tag_names: Sequence[str],
    cls_last: bool = False,
    max_chars_per_word: int = 0,
    document_context: bool = False,
) -> TaggedWords:
    """Tokenizes sentences word by word into sequences.

    Args:
      sentences: The sentences, in document order.
      tokenizer: An `interfaces.Tokenizer` with [CLS] and [SEP].
      max_seq_length: Maximum length in tokens; longer sentences are split, longer words truncated.
      tag_names: All tags; the index of a tag is its class.
      cls_last: Whether [CLS] is the last token of each sequence.
      max_chars_per_word: Characters per token for a `char_ids` column; 0 for no column.
      document_context: Whether sequences are filled with surrounding words of the same document.

    Raises:
      UserError: the tokenizer lacks a special token, or one token does not fit.
    """
    budget = token_budget(tokenizer, 1, max_seq_length)
    template = SequenceTemplate.from_tokenizer(tokenizer, cls_last=cls_last)
    words = _Words.of(sentences, tokenizer, budget, max_chars_per_word)
    sizes = np.array([len(sentence) for sentence in sentences], np.int64)
    predicted = list(_split_words(words.ends, sizes, budget))
    read = predicted
    if document_context:
        documents = [sentence.document for sentence in sentences]
        read = list(
            _with_context(words.ends, predicted, _document_bounds(sizes, documents), budget)
        )
    numbers = {name: number for number, name in enumerate(tag_names)}
    labels = [1 + numbers[tag] for sentence in sentences for tag in sentence.tags]
    sequences = np.repeat(np.arange(len(predicted)), [end - begin for begin, end in predicted])
    origins = np.array([words.ends[begin] for begin, _ in read], np.int64)
    lengths = np.array([words.ends[end] - words.ends[begin] for begin, end in read], np.int64)
    (text_starts,) = template.segment_starts([lengths])
    positions = np.array(words.ends[:-1], np.int64) - origins[sequences] + text_starts[sequences]
    pairs = _pairs(words, origins, lengths, template)
    token_labels = np.zeros(len(pairs.tokens), np.int32)
    token_labels[pairs.starts[sequences] + positions] = labels
    pairs = dataclasses.replace(pairs, columns={**pairs.columns, "token_labels": token_labels})
    return TaggedWords(pairs, sizes, sequences, positions)


_Range = tuple[int, int]
"""(first word, word after the last), counted over all sentences."""


@dataclasses.dataclass(frozen=True)
class _Words:
    """The tokens of all words, concatenated.

    Attributes:
      tokens: The token ids.
      ends: Offset of the end of each word in `tokens`, preceded by 0.
      characters: For each token its row of `table`; None without a table.
      table: The character ids of tokens, for models that read characters.
    """

    tokens: Int32[np.ndarray, " t"]
    ends: list[int]
    characters: Int32[np.ndarray, " t"] | None = None
    table: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        sentences: Sequence[Sentence],
        tokenizer: Tokenizer,
        max_length: int,
        max_chars_per_word: int,
    ) -> "_Words":
        """Tokenizes every distinct word once, as within a text: with a space before it."""
        words = [word for sentence in sentences for word in sentence.words]
        texts = {word: f" {word}" for word in words}
        encoded = tokenizer.encode_batch(list(texts.values()))
        fallback = _fallback_token(tokenizer, dict(zip(texts, encoded, strict=True)))
        known = _truncate_words(texts, encoded, fallback, max_length)
        tokens = _concatenate(words, known)
        ends = np.cumsum([0, *(len(known[word]) for word in words)]).tolist()
        if not max_chars_per_word:
            return cls(tokens, ends)
        character_table = CharacterTable(tokenizer, max_chars_per_word)
        char_rows = _truncate_words(
            texts,
            character_table.lookup(list(texts.values())),
            character_table.token_row(fallback),
            max_length,
        )
        return cls(tokens, ends, _concatenate(words, char_rows), character_table.table())


def _fallback_token(tokenizer: Tokenizer, encoded: dict[str, list[int]]) -> int:
    """Returns the token for words without any, such as words of control characters only."""
    found = tokenizer.mask_id if tokenizer.unk_id is None else tokenizer.unk_id
    if found is not None:
        return found
    empty = next((word for word, ids in encoded.items() if not ids), None)
    if empty is not None:
        raise UserError(
            f"the word {empty!r} has no token, and the tokenizer has neither [UNK] nor [MASK] to "
            "replace it; remove the word from the data"
        )
    return tokenizer.pad_id  # unused: every word has tokens


def _truncate_words(words, encoded: list[list[int]], fallback: int, max_length: int):
    """Returns the tokens of each word: at least one, at most `max_length`."""
    pairs = zip(words, encoded, strict=True)
    return {word: numbers[:max_length] or [fallback] for word, numbers in pairs}


def _concatenate(words: list[str], numbers: dict[str, list[int]]) -> Int32[np.ndarray, " t"]:
    return np.fromiter(chain.from_iterable(numbers[word] for word in words), np.int32)


def _split_words(ends: list[int], sizes: Int64[np.ndarray, " s"], budget: int):
    """Yields ranges of words that fit into a sequence: sentences, or parts of long ones."""
    begin = 0
    for end in np.cumsum(sizes).tolist():
        while begin < end:
            fits = bisect.bisect_right(ends, ends[begin] + budget, begin, end + 1) - 1
            yield begin, fits
            begin = fits


def _document_bounds(sizes: Int64[np.ndarray, " s"], documents: list[int]) -> list[int]:
    """Returns the offsets of the documents, in words, and the total."""
    last = [a != b for a, b in pairwise([*documents, None])]
    return [0, *np.cumsum(sizes)[np.array(last, bool)].tolist()]


def _with_context(ends: list[int], predicted: list[_Range], documents: list[int], budget: int):
    """Extends ranges by as many surrounding words of the same document as fit.

    Each side gets half of the free tokens; tokens that one side cannot use go to the other.
    """
    for begin, end in predicted:
        number = bisect.bisect_right(documents, begin)
        first, last = documents[number - 1], documents[number]
        free = budget - (ends[end] - ends[begin])
        left = bisect.bisect_left(ends, ends[begin] - free // 2, first, begin)
        right = bisect.bisect_right(ends, ends[left] + budget, end, last + 1) - 1
        # The left was limited to half: it also gets the tokens that the right could not use.
        yield bisect.bisect_left(ends, ends[right] - budget, first, left), right


def _pairs(
    words: _Words,
    origins: Int64[np.ndarray, " n"],
    lengths: Int64[np.ndarray, " n"],
    template: SequenceTemplate,
) -> Pairs:
    """Builds one sequence per range of tokens, given by its first token and its length."""
    columns, tables = {}, {}
    if words.table is not None:
        rows = template.map_ids(CharacterTable.token_row)
        columns["char_ids"] = _fill(rows, words.characters, origins, lengths).ids
        tables["char_ids"] = words.table
    frame = _fill(template, words.tokens, origins, lengths)
    return Pairs.from_frame(frame, template, columns=columns, tables=tables)


def _fill(
    template: SequenceTemplate,
    values: Int32[np.ndarray, " t"],
    origins: Int64[np.ndarray, " n"],
    lengths: Int64[np.ndarray, " n"],
) -> Frame:
    frame = template.frame([lengths])
    ranges = zip(origins.tolist(), lengths.tolist(), strict=True)
    frame.write(0, (values[origin : origin + length] for origin, length in ranges))
    return frame
