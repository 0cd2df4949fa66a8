"""Examples of one segment from one document: windows by hand and of random documents."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sentence_examples import CLS, PAD, SEP, make, segments_of, whole_epoch


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


def test_doc_sentences_fill_windows_from_one_document(memory_corpus, varied_documents):
    corpus = memory_corpus(varied_documents(29), record_tokens=61)
    spans = corpus.sentence_spans()
    number_at = {begin: number for number, (begin, _, _) in enumerate(spans)}
    for (tokens,) in segments_of(whole_epoch(make(corpus, "doc-sentences"), 2)):
        first = number_at[tokens[0]]
        chosen = [span for span in spans[first:] if span[1] - tokens[0] <= 65]
        chosen = [span for span in chosen if span[2] == spans[first][2]]
        assert tokens == list(range(tokens[0], chosen[-1][1]))
