"""Examples of one segment that continues over the ends of documents."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from sentence_examples import CLS, PAD, SEP, make, whole_epoch


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
