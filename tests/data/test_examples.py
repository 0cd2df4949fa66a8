"""Examples of masked language models: formats, next-sentence pairs, epochs."""

import numpy as np
import pytest

from bertjax import catalog
from bertjax.errors import UserError

CLS, SEP, PAD = 1_000_001, 1_000_002, 1_000_003

PAIRS = ("next", "order", "none")
ALL_KINDS = [
    ("full-sentences", "none"),
    ("doc-sentences", "none"),
    *((format, pair) for format in ("segment-pair", "sentence-pair") for pair in PAIRS),
]


def make(corpus, format, pair="none", **fields):
    """Examples with special tokens whose ids differ from all positions."""
    fields = {"max_seq_length": 67, "seed": 5, "cls_id": CLS, "sep_id": SEP, "pad_id": PAD} | fields
    examples_class = catalog.load("data/formats", format).Format.examples_class
    return examples_class(corpus, pair=pair, **fields)


def whole_epoch(examples, epoch=0):
    return examples.build(epoch, np.arange(examples.num_examples))


def segments_of(batch):
    """The tokens of the segments of each example, after checking all other arrays."""
    found = []
    for ids, segment_ids, mask in zip(
        batch["input_ids"], batch["segment_ids"], batch["attention_mask"], strict=True
    ):
        length = int(mask.sum())
        assert mask[:length].all()
        assert (ids[length:] == PAD).all()
        assert (segment_ids[length:] == 0).all()
        assert ids[0] == CLS
        assert ids[length - 1] == SEP
        parts = []
        for number in range(segment_ids.max() + 1):
            part = ids[:length][segment_ids[:length] == number]
            assert part[-1] == SEP
            parts.append(part[1 - number : -1].tolist())
        found.append(parts)
    return found


def test_doc_sentences_by_hand(memory_corpus):
    corpus = memory_corpus([[2, 3, 4], [5]])
    # Room for 5 tokens. Sentences have 3.5 tokens on the average, so windows are
    # 5 - round(min(0.8 * 3.5, 5 / 2)) = 3 apart and overlap by 2. 9 + 2 tokens take four windows,
    # which may be moved by 1, 2 or 3 tokens: they begin at 0, 2, 5, 8 or 0, 1, 4, 7 or 0, 0, 3, 6.
    examples = make(corpus, "doc-sentences", max_seq_length=7)
    assert examples.num_examples == 5
    a, b = [CLS, 0, 1, 2, 3, 4, SEP], [CLS, 5, 6, 7, 8, SEP, PAD]
    middle = [CLS, 2, 3, 4, SEP, PAD, PAD]
    other = [CLS, 9, 10, 11, 12, 13, SEP]
    # A window begins with the first sentence from its start on, unless the one before ends earlier;
    # 8 and 7 are after the start of the last sentence.
    moved = {1: [a, middle, b, b, other], 2: [a, middle, b, b, other], 3: [a, a, b, b, other]}
    found = [whole_epoch(examples, epoch) for epoch in range(30)]
    rows = [batch["input_ids"].tolist() for batch in found]
    assert all(epoch in moved.values() for epoch in rows)
    assert 5 < sum(epoch == moved[3] for epoch in rows) < 15
    for batch in found:
        lengths = [sum(token != PAD for token in row) for row in batch["input_ids"].tolist()]
        assert batch["attention_mask"].sum(axis=1).tolist() == lengths
        assert batch["segment_ids"].sum() == 0
        assert batch["example_id"].tolist() == [0, 1, 2, 3, 4]
    dtypes = {key: values.dtype.name for key, values in batch.items()}
    assert dtypes == {
        "input_ids": "int32",
        "segment_ids": "int32",
        "attention_mask": "bool",
        "example_id": "uint32",
    }


def test_sentence_pairs_by_hand(memory_corpus):
    corpus = memory_corpus([[2, 3, 1, 4], [5], [1, 1]])
    examples = make(corpus, "sentence-pair", max_seq_length=10)
    assert examples.num_examples == 3  # nothing follows the sentence of the second document
    epochs = {}
    for epoch in range(20):
        batch = whole_epoch(examples, epoch)
        assert batch["input_ids"][2].tolist() == [CLS, 15, SEP, 16, SEP] + 5 * [PAD]
        assert batch["segment_ids"][2].tolist() == [0, 0, 0, 1, 1] + 5 * [0]
        assert "pair_label" not in batch
        epochs[str(segments_of(batch)[:2])] = segments_of(batch)[:2]
    assert sorted(epochs.values(), key=str) == [
        [[[0, 1], [2, 3, 4]], [[5], [6, 7, 8, 9]]],
        [[[2, 3, 4], [5]], [[5], [6, 7, 8, 9]]],
    ]


def test_longer_segments_are_truncated_first(memory_corpus):
    corpus = memory_corpus([[9, 4], [3, 20], [8, 8]])
    examples = make(corpus, "sentence-pair", max_seq_length=3 + 10)
    a, b = zip(*segments_of(whole_epoch(examples)), strict=True)
    assert [(len(x), len(y)) for x, y in zip(a, b, strict=True)] == [(6, 4), (3, 7), (5, 5)]
    fronts = set()
    for epoch in range(200):
        first = segments_of(make_epoch_row(corpus, epoch))[0][0]
        assert first == list(range(first[0], first[0] + 6))
        fronts.add(first[0])
    assert fronts == {0, 1, 2, 3}


def make_epoch_row(corpus, epoch):
    return make(corpus, "sentence-pair", max_seq_length=13).build(epoch, np.array([0]))


@pytest.mark.parametrize(("format", "pair"), ALL_KINDS)
def test_an_example_is_a_function_of_seed_epoch_and_number(
    memory_corpus, varied_documents, format, pair
):
    corpus = memory_corpus(varied_documents(31), record_tokens=97)
    examples = make(corpus, format, pair)
    chosen = np.random.default_rng(1).permutation(examples.num_examples)[:40]
    together = examples.build(3, chosen)
    again = make(memory_corpus(varied_documents(31), record_tokens=97), format, pair)
    for row, number in enumerate(chosen):
        alone = again.build(3, np.array([number]))
        for key, values in alone.items():
            assert np.array_equal(values[0], together[key][row]), (key, number)
    other = make(corpus, format, pair, seed=6).build(3, chosen)
    assert not np.array_equal(other["input_ids"], together["input_ids"])


@pytest.mark.parametrize(("format", "pair"), ALL_KINDS)
def test_examples_do_not_depend_on_record_boundaries(memory_corpus, varied_documents, format, pair):
    documents = varied_documents(31)
    whole = whole_epoch(make(memory_corpus(documents, record_tokens=10**6), format, pair))
    cut = whole_epoch(make(memory_corpus(documents, record_tokens=53), format, pair))
    for key, values in whole.items():
        assert np.array_equal(values, cut[key]), key


@pytest.mark.parametrize(("format", "pair"), ALL_KINDS)
def test_an_example_reads_few_records(memory_corpus, varied_documents, format, pair):
    corpus = memory_corpus(varied_documents(200), record_tokens=200)
    make(corpus, format, pair).build(0, np.array([17]))
    # 7 windows of 64 tokens span at most 4 records of 171 to 200; a pair may read two places. In
    # full-sentences documents end records earlier.
    assert 0 < len(corpus.read_records) <= 12


def test_full_sentences_cover_the_corpus_cyclically(memory_corpus, varied_documents):
    corpus = memory_corpus(varied_documents(23), record_tokens=61)
    spans = corpus.sentence_spans()
    number_at = {begin: number for number, (begin, _, _) in enumerate(spans)}
    examples = make(corpus, "full-sentences")
    for epoch in range(3):
        for row in whole_epoch(examples, epoch)["input_ids"]:
            tokens = row[row != PAD].tolist()
            number = number_at[tokens[1]]
            expected = [CLS]
            while True:
                begin, end, document = spans[number % len(spans)]
                expected += range(begin, end)
                number += 1
                following = spans[number % len(spans)]
                between = [SEP] if following[2] != document else []
                room = len(row) - 1 - len(expected) - len(between)
                if following[1] - following[0] > room:
                    break
                expected += between
            assert tokens == [*expected, SEP]


def test_doc_sentences_fill_windows_from_one_document(memory_corpus, varied_documents):
    corpus = memory_corpus(varied_documents(29), record_tokens=61)
    spans = corpus.sentence_spans()
    number_at = {begin: number for number, (begin, _, _) in enumerate(spans)}
    for (tokens,) in segments_of(whole_epoch(make(corpus, "doc-sentences"), 2)):
        first = number_at[tokens[0]]
        chosen = [span for span in spans[first:] if span[1] - tokens[0] <= 65]
        chosen = [span for span in chosen if span[2] == spans[first][2]]
        assert tokens == list(range(tokens[0], chosen[-1][1]))


def test_segment_pairs_are_whole_sentences(memory_corpus, varied_documents):
    corpus = memory_corpus(varied_documents(53, max_length=20), record_tokens=300)
    spans = corpus.sentence_spans()
    begins = {begin for begin, _, _ in spans}
    ends = {end for _, end, _ in spans}
    examples = make(corpus, "segment-pair", "next")
    batch, truncated = whole_epoch(examples, 1), 0
    for (a, b), label in zip(segments_of(batch), batch["pair_label"], strict=True):
        assert a + b == [*range(a[0], a[-1] + 1), *range(b[0], b[-1] + 1)]
        documents = [corpus.document_at(part[0]) for part in (a, b)]
        assert (documents[0] != documents[1]) == label
        whole = a[0] in begins and b[0] in begins and a[-1] + 1 in ends and b[-1] + 1 in ends
        if label:
            assert whole or len(a) + len(b) == 64
            truncated += not whole
        else:
            # Two sentences have at most 40 tokens and fit: nothing is truncated.
            assert whole
            assert b[0] == a[-1] + 1
    assert truncated < 0.1 * len(batch["pair_label"])


@pytest.mark.parametrize("format", ["segment-pair", "sentence-pair"])
def test_half_of_the_next_sentences_are_random(memory_corpus, format):
    corpus = memory_corpus([[7] * 40] * 30)
    examples = make(corpus, format, "next")
    labels = whole_epoch(examples)["pair_label"]
    assert abs(labels.sum() - examples.num_examples / 2) <= 1
    assert not np.array_equal(labels, whole_epoch(examples, 1)["pair_label"])


def test_lone_sentences_always_get_a_random_partner(memory_corpus):
    corpus = memory_corpus([[7]] * 20 + [[5] * 30])
    for format in ("segment-pair", "sentence-pair"):
        batch = whole_epoch(make(corpus, format, "next"))
        pairs = segments_of(batch)
        lone = [
            label for (a, _), label in zip(pairs, batch["pair_label"], strict=True) if a[0] < 140
        ]
        assert len(lone) >= 20
        assert all(lone)


def test_paired_documents_swap_their_second_segments(memory_corpus):
    # 200 documents of one window each: nothing else can be in an example.
    corpus = memory_corpus([[4] * 8] * 200)
    examples = make(corpus, "segment-pair", "next", short_seq_prob=0.0)
    assert examples.num_examples == 200
    batch = whole_epoch(examples)
    tokens = [token for pair in segments_of(batch) for part in pair for token in part]
    assert batch["pair_label"].sum() == 100
    assert sorted(tokens) == list(range(200 * 32))


def test_splits_are_equally_likely(memory_corpus):
    corpus = memory_corpus([[8] * 8] * 3000)
    examples = make(corpus, "segment-pair", "none", short_seq_prob=0.0)
    counts = np.bincount([len(a) // 8 for a, _ in segments_of(whole_epoch(examples))], minlength=8)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 3000 / 7).max() < 5 * np.sqrt(3000 / 7)


def test_order_swaps_half_of_the_pairs(memory_corpus, varied_documents):
    corpus = memory_corpus(varied_documents(200))
    for format in ("segment-pair", "sentence-pair"):
        examples = make(corpus, format, "order")
        batch = whole_epoch(examples)
        assert len(batch["pair_label"]) > 500
        for (a, b), label in zip(segments_of(batch), batch["pair_label"], strict=True):
            first, second = (b, a) if label else (a, b)
            assert first[0] < second[0]
            assert second[0] - first[-1] <= 64  # a truncated pair has a gap at most
        share = batch["pair_label"].mean()
        assert abs(share - 0.5) < 2.5 / np.sqrt(len(batch["pair_label"]))


@pytest.mark.parametrize("pair", ["next", "none"])
def test_a_fraction_of_the_examples_is_short(memory_corpus, pair):
    # Sentences of one token end everywhere, so lengths are exactly those aimed at.
    corpus = memory_corpus([[1] * 6400] * 5)
    full = make(corpus, "segment-pair", pair, short_seq_prob=0.0)
    lengths = whole_epoch(full)["attention_mask"].sum(axis=1) - 3
    assert (lengths < 64).mean() < 0.02  # ends of documents

    examples = make(corpus, "segment-pair", pair, short_seq_prob=0.3)
    lengths = whole_epoch(examples)["attention_mask"].sum(axis=1) - 3
    short = lengths[lengths < 64]
    rests = examples.num_examples - full.num_examples
    assert rests == round(0.3 / 1.7 * full.num_examples)
    assert len(short) / len(lengths) == pytest.approx(0.3, abs=0.02)
    assert short.min() == 2
    assert short.max() >= 62
    # Uniform on [2, 62]: mean 32, standard deviation 17.6.
    assert short.mean() == pytest.approx(32, abs=5 * 17.6 / np.sqrt(len(short)))


def test_the_rest_of_a_short_example_is_another_example(memory_corpus):
    corpus = memory_corpus([[1] * 60] * 100)
    examples = make(corpus, "segment-pair", "none", short_seq_prob=1.0)
    assert examples.num_examples == 200
    tokens = [token for a, b in segments_of(whole_epoch(examples)) for token in a + b]
    assert sorted(tokens) == list(range(6000))


@pytest.mark.parametrize("format", ["full-sentences", "doc-sentences", "segment-pair"])
def test_epochs_leave_out_few_and_different_tokens(memory_corpus, varied_documents, format):
    documents = [lengths for lengths in varied_documents(150) if len(lengths) > 1]
    corpus = memory_corpus(documents, record_tokens=400)
    examples = make(corpus, format, max_seq_length=131, short_seq_prob=0.0)
    seen = np.zeros(corpus.num_tokens, int)
    for epoch in range(8):
        ids = whole_epoch(examples, epoch)["input_ids"]
        counts = np.bincount(ids[ids < corpus.num_tokens], minlength=corpus.num_tokens)
        assert (counts == 0).mean() < 0.03
        assert np.maximum(counts - 1, 0).mean() < 0.15
        seen += counts
    assert (seen == 0).mean() < 0.0005


def test_long_sentences_are_split_not_lost(memory_corpus):
    corpus = memory_corpus([[3, 500, 2], [200]])
    for format in ("full-sentences", "doc-sentences", "segment-pair"):
        ids = whole_epoch(make(corpus, format))["input_ids"]
        assert np.isin(np.arange(705), ids).mean() > 0.8
        assert (ids < 705).sum(axis=1).max() <= 65


@pytest.mark.parametrize(("format", "pair"), ALL_KINDS)
def test_frozen_examples_are_the_same_in_every_epoch(memory_corpus, varied_documents, format, pair):
    corpus = memory_corpus(varied_documents(31))
    frozen, anew = (make(corpus, format, pair, resegment=flag) for flag in (False, True))
    first, later = whole_epoch(frozen, 0), whole_epoch(frozen, 7)
    assert all(np.array_equal(first[key], later[key]) for key in first)
    assert np.array_equal(first["input_ids"], whole_epoch(anew, 0)["input_ids"])
    assert not np.array_equal(first["input_ids"], whole_epoch(anew, 7)["input_ids"])


def test_words_start_by_the_vocabulary_and_at_every_sentence(memory_corpus):
    corpus = memory_corpus([[3, 2], [4]])
    table = np.zeros(12, bool)
    table[[1, 9, 10, 11]] = True
    examples = make(
        corpus,
        "full-sentences",
        max_seq_length=14,
        cls_id=9,
        sep_id=10,
        pad_id=11,
        word_starts=table,
    )
    row = examples.build(0, np.array([0]))
    starts = dict(zip(row["input_ids"][0].tolist(), row["word_starts"][0].tolist(), strict=True))
    sentences, table_only, inside = (0, 3, 5), (1, 9, 10, 11), (2, 4, 6, 7, 8)
    assert {token: starts[token] for token in sentences + table_only} == dict.fromkeys(
        sentences + table_only, True
    )
    assert not any(starts[token] for token in inside)
    assert row["word_starts"].dtype == bool


def test_tokenizers_without_special_tokens(memory_corpus):
    corpus = memory_corpus([[2], [3]])
    bare = make(corpus, "full-sentences", cls_id=None, sep_id=None, max_seq_length=5)
    row = bare.build(0, np.array([0]))["input_ids"][0].tolist()
    assert row in ([0, 1, 2, 3, 4], [2, 3, 4, 0, 1])
    ends = make(corpus, "doc-sentences", cls_id=None, max_seq_length=4)
    assert whole_epoch(ends)["input_ids"].tolist() == [[0, 1, SEP, PAD], [2, 3, 4, SEP]]
    with pytest.raises(UserError, match=r"segment-pair: got a tokenizer that lacks \[CLS\]"):
        make(corpus, "segment-pair", cls_id=None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "segment-pair", "pair": "nxt"}, "did you mean 'next'"),
        ({"format": "doc-sentences", "pair": "order"}, "which has one segment"),
        ({"format": "doc-sentences", "max_seq_length": 2}, "leaves 0 tokens"),
        ({"format": "segment-pair", "max_seq_length": 4}, "leaves 1 tokens"),
        (
            {"format": "segment-pair", "short_seq_prob": 1.5},
            "got 1.5, expected 0 to 1",
        ),
        ({"format": "sentence-pair", "short_seq_prob": 0.1}, "got 0.1 with sentence-pair"),
    ],
)
def test_incompatible_options_are_refused(memory_corpus, fields, message):
    corpus = memory_corpus([[3, 4], [5, 6]])
    with pytest.raises(UserError, match=message) as caught:
        make(corpus, **fields)
    assert "\n" not in str(caught.value)


def test_too_small_corpora_are_refused(memory_corpus):
    with pytest.raises(UserError, match="got a corpus of one document"):
        make(memory_corpus([[3, 4, 5]]), "segment-pair", "next")
    with pytest.raises(UserError, match="no document has two sentences"):
        make(memory_corpus([[3], [4]]), "segment-pair", "order")


def test_an_index_of_another_corpus_is_refused(memory_corpus):
    corpus = memory_corpus([[3, 4], [5, 6]])
    corpus.tokens = corpus.tokens + 1
    with pytest.raises(UserError, match="shards and index are from different corpora"):
        whole_epoch(make(corpus, "doc-sentences"))


def test_preview(memory_corpus):
    examples = make(memory_corpus([[2, 2], [3, 3]]), "sentence-pair", "order", max_seq_length=12)
    shown = examples.preview(5)
    assert [row["example_id"] for row in shown] == [0, 1]
    for row in shown:
        assert PAD not in row["input_ids"]
        assert len(row["input_ids"]) == len(row["segment_ids"])
        assert row["pair_label"] == int(row["input_ids"][1] in (2, 7))
