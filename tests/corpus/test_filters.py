"""Filters of documents: values computed by hand, and corpora free of interruptions' traces."""

import contextlib
import hashlib
import json
import random

import pytest

from bertjax.corpus import reading
from bertjax.corpus.filters import (
    DUPLICATES,
    NEAR_DUPLICATES,
    RULES,
    BandHashes,
    DocumentFilter,
    DuplicateIndex,
    parse_filters,
)
from bertjax.corpus.prepare import prepare
from bertjax.corpus.reader import open_corpus
from bertjax.corpus.text_measures import TextMeasures
from bertjax.errors import UserError

TEXT = "one two #3 four...\n- five\n- five\n\none two #3 four...\n\n\u0915\u093f 7"


def test_measures_are_those_computed_by_hand():
    text = TextMeasures(TEXT)
    characters = 3 + 3 + 2 + 7 + (1 + 4) * 2 + 15 + 2 + 1
    assert text.characters() == len(TEXT)
    assert text.words() == 14
    assert text.mean_word_length() == characters / 14
    assert text.letters() == (10 + 8 + 10 + 2) / characters
    assert text.alphabetic_words() == (3 + 2 + 3 + 1) / 14
    assert text.symbols_per_word() == 2 / 14
    assert text.bullet_lines() == 2 / 5
    assert text.ellipsis_lines() == 2 / 5
    assert text.repeated_lines() == 2 / 5
    assert text.repeated_line_characters() == (6 + 18) / (18 + 6 + 6 + 18 + 4)
    assert text.repeated_paragraphs() == 0
    assert text.top_ngram(2) == 2 * 6 / characters  # "one two" and "- five" occur twice
    assert text.top_ngram(5) == 0
    # The second "- five" and the second line: 5 + 15 characters.
    assert text.repeated_ngrams(2) == (5 + 15) / characters
    assert text.repeated_ngrams(4) == 15 / characters
    assert TextMeasures("a\n\nb\n\na\n\na").repeated_paragraphs() == 0.5
    assert TextMeasures("ab\n\nc\n\nab").repeated_paragraph_characters() == 2 / 5
    assert TextMeasures("x x x x").repeated_ngrams(2) == 3 / 4
    assert TextMeasures("x y").repeated_ngrams(5) == TextMeasures("x y").top_ngram(5) == 0


def test_measures_of_ngrams_are_those_of_a_direct_count():
    sample = random.Random(0)
    for length in range(1, 60):
        words = [sample.choice(["a", "bb", "ccc"]) for _ in range(length)]
        text = TextMeasures(" ".join(words))
        for size in (1, 2, 5, 8):
            ngrams = [tuple(words[i : i + size]) for i in range(length - size + 1)]
            inside = {
                place
                for start, ngram in enumerate(ngrams)
                if ngram in ngrams[:start]
                for place in range(start, start + size)
            }
            top = max(ngrams, key=ngrams.count, default=())  # the first of equally common ones
            count = ngrams.count(top) * (ngrams.count(top) > 1)
            total = len("".join(words))
            assert text.repeated_ngrams(size) == sum(len(words[i]) for i in inside) / total
            assert text.top_ngram(size) == count * len("".join(top)) / total


def test_the_first_broken_rule_is_the_reason():
    bounds = parse_filters(["gopher", "min_words=3", "max_mean_word_length=100"])
    assert bounds["min_words"] == 3
    assert list(bounds) == [name for name in RULES if name in bounds]
    texts = ["One two.", "a b c d", "fine words of mean length", "1234 5678 1234 9012"]
    verdicts = DocumentFilter(bounds)(texts)
    reasons = ["min_words", "min_mean_word_length", "", "min_alphabetic_words"]
    assert verdicts.broken_rules == reasons
    assert verdicts.keys.shape == (1, 0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("min_word=3", r"unknown filter 'min_word': did you mean 'min_words'"),
        ("min_words", r"filter 'min_words': got 'no value', expected a number >= 0"),
        ("max_bullet_lines=2", r"got '2', expected a number from 0 to 1"),
        ("near_duplicates=0.2", r"got '0\.2', expected a number from 0\.5 to 0\.95"),
        ("max_words=inf", r"got 'inf', expected a number >= 0"),
        ("gopher=1", r"filter 'gopher=1': got a value, expected gopher alone"),
    ],
)
def test_invalid_filters_are_refused(entry, message):
    with pytest.raises(UserError, match=message):
        parse_filters([entry])


def test_exact_duplicates_are_dropped_after_the_first():
    bounds = parse_filters(["duplicates"])
    keys = DocumentFilter(bounds)(["a", "b", "a"]).keys
    index = DuplicateIndex(bounds)
    assert [index.add(key) for key in keys] == ["", "", DUPLICATES]
    again = DuplicateIndex(bounds, keys[0].tolist())
    assert [again.add(key) for key in keys] == [DUPLICATES, "", DUPLICATES]


def test_near_duplicates_are_found_at_about_the_threshold():
    """Most documents of Jaccard index 0.9 are found, and few of 0.5; also without spaces."""
    pytest.importorskip("datasketch", reason="the extra `dedup`")
    bounds = parse_filters(["near_duplicates=0.8", "duplicates"])
    keys_of = DocumentFilter(bounds)
    draw = random.Random(3)
    for separator in (" ", ""):
        letters = [chr(0x4E00 + number) for number in range(2000)]
        found = {0.9: 0, 0.5: 0}
        for similarity in found:
            # Replacing the end of a text of n-grams leaves s = (n - k) / (n + k) of them in common.
            changed = round(300 * (1 - similarity) / (1 + similarity))
            for _ in range(25):
                words = draw.choices(letters, k=304)
                other = words[:-changed] + draw.choices(letters, k=changed)
                index = DuplicateIndex(bounds)
                keys = keys_of([separator.join(words), separator.join(other)]).keys
                assert index.add(keys[0]) == ""
                found[similarity] += index.add(keys[1]) == NEAR_DUPLICATES
                assert index.add(keys[0]) == DUPLICATES
        assert found[0.9] >= 22
        assert found[0.5] <= 3


@pytest.mark.parametrize(
    ("text", "same", "other"),
    [
        ("Old mill, by the river!", "old MILL\tby_the-river", "old mill by the rivers"),
        ("c ab d e f", "C (ab) d, e f", "b ac d e f"),
        ("水車 и 川水", "水 車 И 川 水", "車水 и 川水"),
        ("ไทย x1", "ไ ท ย X1", "ไทย x2"),
        ("...", "...", "!!!"),
        ("\ud800 a", "\ud800 A", "a b"),
    ],
)
def test_near_duplicates_have_the_same_words(text, same, other):
    """Words are separated by anything but letters and digits; some scripts have no spaces."""
    pytest.importorskip("datasketch", reason="the extra `dedup`")
    keys = BandHashes(0.8)
    assert keys(text) == keys(same)
    assert set(keys(text)).isdisjoint(keys(other))


class Stop(BaseException):
    """Raised by a callback to interrupt `prepare`."""


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_filtered_corpora_are_the_same_for_any_workers_and_interruptions(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_CHARACTERS", 1 << 12)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\nw\n##1\n##2\n##3\n")
    draw = random.Random(5)
    texts = [" ".join(draw.choices(["w1", "w2", "w3"], k=draw.randint(1, 99))) for _ in range(500)]
    texts = [draw.choice(texts) for _ in range(1000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def make(out, **options):
        options = {"workers": 1, "filters": ["min_words=10", "duplicates"]} | options
        return prepare(
            [str(tmp_path / "a.jsonl")],
            tmp_path / "vocab.txt",
            tmp_path / out,
            validation_fraction=0.2,
            shard_size=0.004,
            **options,
        )

    manifest = make("one", workers=2)
    kept = list(dict.fromkeys(text for text in texts if text.count(" ") >= 9))
    assert sum(split["documents"] for split in manifest["splits"].values()) == len(kept)
    short = sum(text.count(" ") < 9 for text in texts)
    dropped = {"min_words": short, "duplicates": len(texts) - len(kept) - short}
    assert {name: count for name, count in manifest["dropped"].items() if count} == dropped
    assert manifest["source"]["filters"] == {"min_words": 10, "duplicates": 1}
    corpora = [open_corpus(tmp_path / "one", split) for split in ("train", "validation")]
    assert sum(corpus.num_tokens for corpus in corpora) == sum(2 * len(t.split()) for t in kept)
    blocks = 0

    def stop(progress):
        nonlocal blocks
        blocks += 1
        if blocks % 15 == 0:
            raise Stop

    while not (tmp_path / "two/manifest.json").is_file():
        with contextlib.suppress(Stop):
            make("two", progress=stop)
    assert blocks > 30
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    with pytest.raises(UserError, match="started with other options: filters: got null, expected"):
        make("two", filters=())
    with pytest.raises(
        UserError, match=r"no text is left in .*: filters drop .* by min_characters"
    ):
        make("three", filters=["min_characters=100000"])
    assert not (tmp_path / "three").exists()
