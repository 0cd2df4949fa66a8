"""Sentence splitting: rules, speed and accuracy."""

import pytest

from bertjax.corpus.sentences import split_line, split_paragraphs, split_sentences


@pytest.mark.parametrize(
    "expected",
    [
        ["One ends here.", "Two begins."],
        ["Really?!", "Yes!", "And then ...", "The end"],
        ["Dr. A. B. Smith met Mr. Jones vs. the U.S. Army at 3 p.m. on Monday.", "He left."],
        ["He lives in the U.S.", "He likes it."],
        ["It was made by Acme Inc.", "The firm is gone."],
        ["It was made by Acme Inc. of Ohio."],
        ['"Go home."', "She left."],
        ["(It rained.)", "[1] They stayed."],
        ["It costs 3.14 or 2.71.", "1995 was fine."],
        ["See No. 5 and Fig. 3, pp. 3-5, i.e. Nothing.", "No.", "Never."],
        ["1. An item with a number", "2. Another"],
        ["It rose to 3.5 percent, e.g. in May.", "Prices fell to 0.53.", "Sales rose."],
        ["He said it... and continued."],
        ["What about www.example.com.", "It is gone."],
        ["\u201cStop.\u201d", "\u2018Why?\u2019", "She asked."],
        ["\u4f60\u597d\u3002", "\u4f60\u597d\u5417\uff1f", "\u597d\uff01"],
        ["\u4ed6\u8bf4\uff1a\u300c\u597d\u3002\u300d", "\u5979\u8d70\u4e86\u3002"],
        ["\u4ed6\u8bf4\uff1a\u201c\u597d\u3002\u201d", "\u5979\u8d70\u4e86\u3002"],
        [
            "\u0647\u0644 \u0647\u0630\u0627\u061f",
            "\u0646\u0639\u0645 \u06d4",
            "\u0647\u0630\u0627",
        ],
    ],
    ids=lambda expected: expected[0][:24].encode("ascii", "backslashreplace").decode(),
)
def test_sentence_ends(expected):
    wide = any("\u3000" <= character <= "\uffff" for character in "".join(expected))
    if expected[0].startswith("1."):
        assert split_sentences("\n".join(expected)) == expected
    else:
        assert split_line(("" if wide else " ").join(expected)) == expected


def test_a_line_end_ends_a_sentence():
    text = "  A heading\nA sentence. Another \r\n\n   \nlast\tline\n"
    assert split_paragraphs(text) == [["A heading"], ["A sentence.", "Another"], ["last\tline"]]
    assert split_sentences(text) == ["A heading", "A sentence.", "Another", "last\tline"]
    assert split_sentences(" \n ") == []


def test_only_white_space_is_lost(shared_data):
    from bertjax.corpus.text import read_documents

    texts = read_documents([str(shared_data / "corpus/enwiki_heldout/*.gz")])
    for document in texts:
        assert "".join("".join(split_sentences(document)).split()) == "".join(document.split())


@pytest.mark.parametrize("pattern", [".", '."', "a. ", "\u3002", ")", "1. ", "A", '"', "... "])
def test_time_is_linear_in_the_worst_text(pattern):
    """Quadratic time would take hours for this much; the process would be killed."""
    text = pattern * (1_000_000 // len(pattern))
    assert "".join("".join(split_line(text)).split()) == "".join(text.split())


def test_accuracy_on_newspaper_text_is_as_measured(shared_data, load_script):
    measure = load_script("tools/measure_sentences.py")
    lines = [
        line
        for document in measure.gold(shared_data / "ner/conll2003/test.txt")
        for line in document
    ]
    found = measure.measure(split_line, lines)
    assert found["boundaries"] == 1501
    assert found["precision"] >= 0.997
    assert found["recall"] >= 0.988
