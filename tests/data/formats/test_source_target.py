"""The source-target format: pairs of a corpus as batches."""

import numpy as np
import pytest

from bertjax import catalog
from bertjax.corpus import documents
from bertjax.corpus.prepare import prepare
from bertjax.corpus.reader import open_corpus
from bertjax.corpus.text import read_documents
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.tokenizers import tokenizer as tokenizers

PAIRS = [
    ("one two. three four.", "four"),
    ("two", "one. Two. three"),
    ("four four four four four four", "two two"),
]


@pytest.fixture(scope="module")
def tsv(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS * 20))
    return path


@pytest.fixture(scope="module")
def tokenizer(tsv):
    texts = read_documents([str(tsv)], format=documents.PAIR_FORMAT)
    return tokenizers.train(texts, vocab_size=60)


@pytest.fixture(scope="module")
def corpus(tsv, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs") / "corpus"
    tokenizer.save(str(folder / "vocab"))
    made = folder / "made"
    prepare([str(tsv)], folder / "vocab", made, format=documents.PAIR_FORMAT, workers=1)
    return open_corpus(made)


def examples(corpus, tokenizer, length=12):
    specials = SequenceTemplate(tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
    return catalog.load("data/formats", "source-target").SourceTargets(
        corpus, specials, max_seq_length=length, seed=0
    )


def test_both_texts_have_an_end_token_and_padding(corpus, tokenizer):
    made = examples(corpus, tokenizer)
    assert made.num_examples == len(PAIRS) * 20
    batch = made.build(0, np.arange(3))
    for row, texts in enumerate(PAIRS):
        for name, mask, text in zip(
            ("input_ids", "target_ids"), ("attention_mask", "target_mask"), texts, strict=True
        ):
            expected = [*tokenizer.encode_batch([text])[0], tokenizer.sep_id]
            assert batch[name][row][batch[mask][row]].tolist() == expected
            assert np.all(batch[name][row][~batch[mask][row]] == tokenizer.pad_id)


def test_long_texts_are_truncated(corpus, tokenizer):
    batch = examples(corpus, tokenizer, length=4).build(0, np.array([2]))
    (four,) = tokenizer.encode_batch(["four"])[0]
    assert batch["input_ids"][0].tolist() == [four] * 3 + [tokenizer.sep_id]


def test_an_epoch_has_every_pair_once_in_its_own_order(corpus, tokenizer):
    made = examples(corpus, tokenizer)
    places = np.arange(made.num_examples)
    orders = [made.order(epoch, places) for epoch in (0, 1)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), places)
    assert (orders[0] != orders[1]).any()


def test_a_corpus_of_documents_is_refused(corpus, tokenizer, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One two. Three four. Five six.\n")
    tokenizer.save(str(tmp_path / "vocab"))
    prepare([str(path)], tmp_path / "vocab", tmp_path / "made", workers=1)
    with pytest.raises(UserError, match="the corpus has no pairs: prepare it with --format"):
        examples(open_corpus(tmp_path / "made"), tokenizer)
    with pytest.raises(UserError, match="python-docs: got text, expected pairs"):
        list(read_documents(["python-docs"], format=documents.PAIR_FORMAT))
