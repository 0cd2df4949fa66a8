"""Extend a vocabulary by pieces of another text: more merges of WordPiece or byte-level BPE.

The words of the text are divided into the pieces of the tokenizer, of which the most frequent pairs
are merged (Sennrich et al. 2016, section 3.2), as if the training of the vocabulary continued with
this text. Existing ids do not change; new pieces follow them.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bertjax import interfaces
from bertjax.errors import UserError
from bertjax.tokenizers import training
from bertjax.tokenizers.definitions import Definition, merges, vocabulary
from bertjax.tokenizers.special_tokens import KNOWN_SPECIALS
from bertjax.tokenizers.subword import SubwordTokenizer, is_byte_level

_FIRST_CHARACTER = 0x20000
"""Training encodes each piece as one character: code points from here on, never white space."""


@dataclasses.dataclass(frozen=True)
class Extension:
    """An extended tokenizer and its effect on the text it was extended with.

    Attributes:
      tokenizer: The tokenizer with the new pieces.
      pieces: The new pieces, in the order of their ids.
      pieces_per_word: Mean number of pieces of a word before and after, without unknown words.
      unknown_share: Fraction of the words with a character that no piece has; they are ignored.
    """

    tokenizer: SubwordTokenizer
    pieces: list[str]
    pieces_per_word: tuple[float, float]
    unknown_share: float


def extend(tokenizer: interfaces.Tokenizer, texts: Iterable[str], *, num_pieces: int) -> Extension:
    """Adds the most frequent merges of pieces of a text to a vocabulary, reproducibly.

    Args:
      tokenizer: WordPiece or byte-level BPE.
      texts: Documents, read once.
      num_pieces: Number of new pieces; fewer if no pair is frequent enough
        (`training.MIN_FREQUENCY`).

    Raises:
      UserError: another kind of tokenizer, or no text.
    """
    check(tokenizer)
    definition = tokenizer.definition
    words = training.count_words(texts, _splitter(definition))
    if not words:
        raise UserError("cannot extend a vocabulary: the input contains no text")
    divided = _divide(definition, words)
    known = sum(words[word] for word in divided)
    # More than needed, since some merges give a piece that the vocabulary has.
    pairs = _most_frequent_pairs(divided, words, 2 * num_pieces)
    extended, pieces = _with_merges(definition, pairs, tokenizer.vocab_size, num_pieces)
    after = _divide(extended, words)
    return Extension(
        tokenizer=SubwordTokenizer(extended),
        pieces=pieces,
        pieces_per_word=(_mean_length(divided, words), _mean_length(after, words)),
        unknown_share=1 - known / words.total(),
    )


def check(tokenizer: interfaces.Tokenizer) -> None:
    """Checks that the vocabulary of a tokenizer can be extended.

    Raises:
      UserError: the tokenizer is neither WordPiece nor byte-level BPE.
    """
    is_subword = isinstance(tokenizer, SubwordTokenizer)
    if is_subword and (tokenizer.kind == "wordpiece" or is_byte_level(tokenizer.definition)):
        return
    raise UserError(
        f"cannot extend a vocabulary of kind {tokenizer.kind}: expected WordPiece or byte-level "
        "BPE; train a new one with `bertjax tokenizer train`: pretraining with --init keeps the "
        "embeddings of equal pieces"
    )


def _splitter(definition: Definition) -> Callable[[str], list[str]]:
    split = training.splitter(definition)
    if not is_byte_level(definition):
        return split
    return lambda chunk: split(f" {chunk}")  # a space is a part of the word that follows it


def _divide(definition: Definition, words: Iterable[str]) -> dict[str, list[str]]:
    """The pieces of each word that has no unknown one."""
    model = Tokenizer.from_str(json.dumps(definition)).model
    unknown = definition["model"].get("unk_token")
    divided = {word: [token.value for token in model.tokenize(word)] for word in words}
    return {word: pieces for word, pieces in divided.items() if unknown not in pieces}


def _mean_length(divided: Mapping[str, list[str]], words: Counter[str]) -> float:
    total = sum(words[word] for word in divided)
    return sum(words[word] * len(pieces) for word, pieces in divided.items()) / max(total, 1)


def _most_frequent_pairs(
    divided: Mapping[str, list[str]], words: Counter[str], count: int
) -> list[tuple[list[str], list[str]]]:
    """Trains merges of pieces, each written as one character; a merge is two lists of pieces."""
    characters: dict[str, str] = {}
    spelled: Counter[str] = Counter()
    for word, pieces in divided.items():
        if len(pieces) > 1:
            for piece in pieces:
                characters.setdefault(piece, chr(_FIRST_CHARACTER + len(characters)))
            spelled["".join(map(characters.get, pieces))] += words[word]
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=len(characters) + count,
        min_frequency=training.MIN_FREQUENCY,
        # In this order; the trainer's own order of characters varies between runs.
        special_tokens=list(characters.values()),
        show_progress=False,
    )
    library.train_from_iterator(training.repeat_words(spelled), trainer)
    piece_of = {character: piece for piece, character in characters.items()}
    return [
        tuple([piece_of[character] for character in part] for part in pair)
        for pair in merges(json.loads(library.to_str())["model"])
    ]


def _with_merges(
    definition: Definition,
    pairs: Iterable[tuple[list[str], list[str]]],
    first_id: int,
    num_pieces: int,
) -> tuple[Definition, list[str]]:
    """Adds merges to a definition until there are `num_pieces` new pieces; returns these too."""
    model = definition["model"]
    inside = model.get("continuing_subword_prefix") or ""
    known = vocabulary(model).keys() | KNOWN_SPECIALS
    new: dict[str, int] = {}
    added: dict[tuple[str, str], None] = {}

    def join(pieces: list[str]) -> str:
        return pieces[0] + "".join(piece.removeprefix(inside) for piece in pieces[1:])

    for pair in pairs:
        if len(new) == num_pieces:
            break
        piece = join([*pair[0], *pair[1]])
        added[join(pair[0]), join(pair[1])] = None
        if piece not in known:
            new.setdefault(piece, first_id + len(new))
    changed = model | {"vocab": vocabulary(model) | new}
    if "merges" in model:
        before = merges(model)
        present = set(map(tuple, before))
        changed["merges"] = before + [list(pair) for pair in added if pair not in present]
    return definition | {"model": changed}, list(new)
