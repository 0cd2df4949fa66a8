"""Tagged sentences as sequences, by hand; every word is predicted exactly once."""

import random
import types

import numpy as np
import pytest

from bertjax.data.characters import boundary_word, spell
from bertjax.errors import UserError
from bertjax.tasks import sequences
from bertjax.tasks.ner import conll as ner_conll
from bertjax.tasks.ner import words as ner_words
from bertjax.tasks.ner.conll import Sentence
from bertjax.tokenizers import tokenizer

TAGS = ("O", "B-X", "I-X")
CLS, SEP, PAD, UNKNOWN, MASK = 1, 2, 7, 8, 9


def letters(**changes):
    """A tokenizer with one token per letter: a is 10, b is 11, ...; a word of dots has none."""
    known = {"cls_id": CLS, "sep_id": SEP, "pad_id": PAD, "unk_id": UNKNOWN, "mask_id": MASK}

    def encode_batch(texts):
        assert all(text.startswith(" ") for text in texts)
        return [[ord(letter) - 87 for letter in text.strip(" .")] for text in texts]

    return types.SimpleNamespace(encode_batch=encode_batch, pair_separators=1, **known | changes)


def sentence(text, tags="", document=0):
    words = tuple(text.split())
    tags = tuple(tags.split()) or ("O",) * len(words)
    return Sentence(words, tags, ((),) * len(words), ("",) * len(words), document)


def rows(encoded, length=9):
    return encoded.pairs.rows(np.arange(len(encoded.pairs)), length)


def encode(sentences, length=9, tokens=None, **options):
    return ner_words.encode(sentences, tokens or letters(), length, tag_names=TAGS, **options)


def test_labels_are_at_the_first_token_of_each_word():
    batch = rows(encode([sentence("abc d ef", "B-X I-X O"), sentence("d", "I-X")]))
    assert batch["input_ids"].tolist() == [
        [CLS, 10, 11, 12, 13, 14, 15, SEP, PAD],
        [CLS, 13, SEP, *[PAD] * 6],
    ]
    assert batch["token_labels"].tolist() == [[0, 2, 0, 0, 3, 1, 0, 0, 0], [0, 3, *[0] * 7]]
    assert batch["attention_mask"].sum(axis=1).tolist() == [8, 3]
    assert not batch["segment_ids"].any()
    assert batch["token_labels"].dtype == np.int32


def test_predictions_are_mapped_to_words():
    encoded = encode([sentence("abc d ef"), sentence("d")])
    assert encoded.sequences.tolist() == [0, 0, 0, 1]
    assert encoded.positions.tolist() == [1, 4, 5, 1]
    values = np.arange(18).reshape(2, 9)
    assert [each.tolist() for each in encoded.by_sentence(values)] == [[1, 4, 5], [10]]
    deeper = np.stack([values, -values], axis=-1)
    assert encoded.by_sentence(deeper)[1].tolist() == [[10, -10]]


def test_cls_last():
    encoded = encode([sentence("abc d", "B-X I-X")], cls_last=True)
    batch = rows(encoded)
    assert batch["input_ids"].tolist() == [[10, 11, 12, 13, SEP, CLS, PAD, PAD, PAD]]
    assert batch["segment_ids"].tolist() == [[0] * 5 + [2, 0, 0, 0]]
    assert batch["token_labels"].tolist() == [[2, 0, 0, 3, 0, 0, 0, 0, 0]]
    assert encoded.positions.tolist() == [0, 3]


def test_a_long_sentence_is_split_between_words():
    encoded = encode([sentence("ab cd ef g"), sentence("h")], length=7)
    assert rows(encoded, 7)["input_ids"].tolist() == [
        [CLS, 10, 11, 12, 13, SEP, PAD],
        [CLS, 14, 15, 16, SEP, PAD, PAD],
        [CLS, 17, SEP, PAD, PAD, PAD, PAD],
    ]
    assert encoded.sequences.tolist() == [0, 0, 1, 1, 2]
    assert encoded.positions.tolist() == [1, 3, 1, 3, 1]
    assert encoded.sizes.tolist() == [4, 1]


def test_a_word_longer_than_a_sequence_is_truncated():
    encoded = encode([sentence("abcdef g", "B-X O")], length=5)
    assert rows(encoded, 5)["input_ids"].tolist() == [[CLS, 10, 11, 12, SEP], [CLS, 16, SEP, 7, 7]]
    assert rows(encoded, 5)["token_labels"].tolist() == [[0, 2, 0, 0, 0], [0, 1, 0, 0, 0]]


def test_a_word_without_tokens_is_predicted():
    text = [sentence("a . b", "O B-X O")]
    assert rows(encode(text), 5)["input_ids"].tolist() == [[CLS, 10, UNKNOWN, 11, SEP]]
    assert rows(encode(text), 5)["token_labels"].tolist() == [[0, 1, 2, 1, 0]]
    masked = encode(text, tokens=letters(unk_id=None))
    assert rows(masked, 5)["input_ids"].tolist() == [[CLS, 10, MASK, 11, SEP]]
    neither = letters(unk_id=None, mask_id=None)
    assert len(encode([sentence("a b")], tokens=neither).pairs) == 1
    with pytest.raises(
        UserError, match=r"the word '\.' has no token, and the tokenizer has neither"
    ):
        encode(text, tokens=neither)


def test_document_context_is_encoded_and_not_predicted():
    text = [sentence("ab c"), sentence("d e", "B-X O"), sentence("fg h"), sentence("i", "", 1)]
    encoded = encode(text, length=8, document_context=True)
    batch = rows(encoded, 8)
    assert batch["input_ids"].tolist() == [
        [CLS, 10, 11, 12, 13, 14, SEP, PAD],  # fg would not fit
        [CLS, 12, 13, 14, 15, 16, 17, SEP],  # two on either side, of which ab does not fit
        [CLS, 12, 13, 14, 15, 16, 17, SEP],
        [CLS, 18, SEP, PAD, PAD, PAD, PAD, PAD],  # another document
    ]
    assert batch["token_labels"].tolist() == [
        [0, 1, 0, 1, 0, 0, 0, 0],
        [0, 0, 2, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 1, 0],
        [0, 1, 0, 0, 0, 0, 0, 0],
    ]
    assert encoded.positions.tolist() == [1, 3, 2, 3, 4, 6, 1]


def random_sentences(seed, count=40):
    state = random.Random(seed)
    letter = "abcdefghijklmnopqrstuvwxyz."
    texts = [
        " ".join(
            "".join(state.choice(letter) for _ in range(state.randint(1, 6)))
            for _ in range(state.randint(1, 14))
        )
        for _ in range(count)
    ]
    tags = [" ".join(state.choice(TAGS) for _ in text.split()) for text in texts]
    return [sentence(*each, n // 7) for n, each in enumerate(zip(texts, tags, strict=True))]


def pieces(word, max_length):
    (ids,) = letters().encode_batch([f" {word}"])
    return ids[:max_length] or [UNKNOWN]


@pytest.mark.parametrize("document_context", [False, True])
@pytest.mark.parametrize("cls_last", [False, True])
@pytest.mark.parametrize("length", [3, 4, 7, 12, 30, 200])
def test_every_word_is_predicted_exactly_once(length, cls_last, document_context):
    sentences = random_sentences(length)
    encoded = encode(sentences, length, cls_last=cls_last, document_context=document_context)
    batch = rows(encoded, length)
    assert encoded.pairs.lengths.max() <= length
    words = [word for each in sentences for word in each.words]
    tags = [tag for each in sentences for tag in each.tags]
    where = list(zip(encoded.sequences.tolist(), encoded.positions.tolist(), strict=True))
    assert len(set(where)) == len(where) == len(words)
    assert np.count_nonzero(batch["token_labels"]) == len(words)
    for (row, place), word, tag in zip(where, words, tags, strict=True):
        ids = pieces(word, length - 2)
        assert batch["input_ids"][row, place : place + len(ids)].tolist() == ids
        assert batch["token_labels"][row, place] == 1 + TAGS.index(tag)
    predicted = [value - 1 for value in encoded.by_sentence(batch["token_labels"])]
    assert [[TAGS[n] for n in each] for each in predicted] == [list(s.tags) for s in sentences]


@pytest.mark.parametrize("length", [7, 12, 30, 200])
def test_document_context_fills_both_sides(length):
    sentences = random_sentences(length)
    budget = length - 2
    encoded = encode(sentences, length, document_context=True)
    batch = rows(encoded, length)
    flat = [(word, each.document) for each in sentences for word in each.words]
    sizes = [len(pieces(word, budget)) for word, _ in flat]
    for row in range(len(encoded.pairs)):
        mine = np.flatnonzero(encoded.sequences == row)
        begin, end = mine[0], mine[-1] + 1
        document = [n for n, (_, d) in enumerate(flat) if d == flat[begin][1]]
        left = begin
        while sum(sizes[left:begin]) < encoded.positions[begin] - 1:
            left -= 1
        right = left
        while sum(sizes[left:right]) < encoded.pairs.lengths[row] - 2:
            right += 1
        read = [identity for word, _ in flat[left:right] for identity in pieces(word, budget)]
        assert batch["input_ids"][row, 1 : 1 + len(read)].tolist() == read
        assert document[0] <= left <= begin < end <= right <= document[-1] + 1
        used = sum(sizes[left:right])
        assert left == document[0] or used + sizes[left - 1] > budget
        assert right == document[-1] + 1 or used + sizes[right] > budget
        if left > document[0] and right <= document[-1]:
            before, after = sum(sizes[left:begin]), sum(sizes[end:right])
            assert abs(before - after) <= 2 * max(sizes) + 1  # even but for words that do not fit


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_words_are_tokenized_as_in_running_text(kind):
    text = "the cat sees a dog and the dog sees another cat"
    learned = tokenizer.train([text] * 20, kind=kind, vocab_size=300)
    encoded = encode([sentence(text)], 64, tokens=learned)
    (inside,) = learned.encode_batch([f"the {text}"])
    (first,) = learned.encode_batch(["the"])
    tokens = encoded.pairs.tokens.tolist()
    assert tokens == [learned.cls_id, *inside[len(first) :], learned.sep_id]


def test_characters_of_words():
    learned = tokenizer.train(["cats see dogs"] * 9, kind="words", vocab_size=50)
    text = [sentence("see elks"), sentence("dogs see elks")]
    encoded = ner_words.encode(
        text, learned, 5, tag_names=TAGS, max_chars_per_word=7, cls_last=True
    )
    batch = rows(encoded, 5)
    begin, end = boundary_word(256, 7), boundary_word(257, 7)
    see, elks, dogs = spell(["see", "elks", "dogs"], 7)
    empty = np.full(7, 260)
    assert batch["char_ids"].tolist() == [
        [each.tolist() for each in row]
        for row in ([see, elks, end, begin, empty], [dogs, see, elks, end, begin])
    ]
    plain = sequences.encode(
        (["see elks", "dogs see elks"],), learned, 5, max_chars_per_word=7, cls_last=True
    )
    assert plain.first_lengths.tolist() == encoded.pairs.first_lengths.tolist()
    for name, values in plain.rows(np.arange(2), 5).items():
        assert np.array_equal(values, batch[name]), name


def test_impossible_settings_are_refused():
    with pytest.raises(UserError, match=r"max_seq_length=2 leaves no room for 1 text\(s\)"):
        encode([sentence("a")], 2)
    with pytest.raises(UserError, match=r"the tokenizer has no \[CLS\] and \[SEP\] tokens"):
        encode([sentence("a")], 9, tokens=letters(sep_id=None))


RELEASED = ["bert-base-cased", "bert-base-uncased", "t5/spiece.model"]


@pytest.mark.parametrize("name", RELEASED)
def test_released_sentences(shared_data, name):
    learned = tokenizer.load(shared_data / "vocab" / name)
    if learned.cls_id is None:
        learned.cls_id = learned.mask_id = learned.sep_id  # T5 has </s> alone
    sentences = ner_conll.read(shared_data / "ner" / "conll2003" / "valid.txt")[:1500]
    names = ner_conll.tag_names(sentences)
    encoded = ner_words.encode(sentences, learned, 40, tag_names=names, document_context=True)
    batch = rows(encoded, 40)
    assert len(encoded.pairs) > len(sentences)  # some were cut
    assert batch["attention_mask"].mean() > 0.9  # but for the ends of documents
    printed = encoded.by_sentence(batch["token_labels"])
    assert [tuple(names[n - 1] for n in each) for each in printed] == [s.tags for s in sentences]
    first = encoded.by_sentence(batch["input_ids"])
    starts_word = learned.word_starts[np.concatenate(first)]
    assert starts_word.all()
