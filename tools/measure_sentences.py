"""Evaluates the sentence splitter against the sentences of CoNLL-2003; prints JSON.

CoNLL-2003's sentences are joined to running text: a sentence that ends in a closing mark is
followed by a space, any other one (a headline, a row of a table) by a line end, as in the
newspaper. Line ends are boundaries for every splitter and are not counted. A boundary is an offset
in the text without white space.

    python tools/measure_sentences.py --data ../shared/data/ner/conll2003

`--with pysbd` (or `nltk`, trained on the training part's running text) also evaluates that library,
if it is installed.
"""

import argparse
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.corpus.sentences import split_line

Splitter = Callable[[str], list[str]]


def gold(path: pathlib.Path) -> list[list[list[str]]]:
    """Reads documents as lines of running text, each a list of sentences."""
    documents: list[list[list[str]]] = []
    inside_quotes = False
    for block in path.read_text().split("\n\n"):
        words = [row.split(" ")[0] for row in block.splitlines() if row]
        if words == ["-DOCSTART-"]:
            documents.append([[]])
            inside_quotes = False
        elif words:
            sentence, inside_quotes = detokenize(words, inside_quotes)
            documents[-1][-1].append(sentence)
            if not re.search(r"[.!?][\"')]*$", sentence):
                documents[-1].append([])
    return [[line for line in document if line] for document in documents]


def detokenize(words: list[str], inside_quotes: bool) -> tuple[str, bool]:
    """Joins words to approximately the original text of the newspaper, by rules.

    Quotations may span several sentences: `inside_quotes` is the state before and after the words.
    """
    text, opened = "", False
    for number, word in enumerate(words):
        glued = re.fullmatch(r"[.,;:!?%)\]]|'(s|re|ve|ll|d|m)?|n't|\.\.\.", word) is not None
        if word == '"':
            closes = (inside_quotes and number > 0) or number == len(words) - 1
            glued, inside_quotes = closes, not closes
        text += word if glued or opened or not text else " " + word
        opened = word in ("(", "[", "$") or (word == '"' and inside_quotes)
    return text, inside_quotes


def boundaries(sentences: list[str]) -> set[int]:
    """Ends of all sentences but the last, as offsets in characters without white space."""
    ends, length = set(), 0
    for sentence in sentences:
        length += len("".join(sentence.split()))
        ends.add(length)
    return ends - {length}


def measure(split: Splitter, lines: list[list[str]]) -> dict[str, float]:
    """Precision, recall and F1 of the boundaries within lines, and the speed."""
    texts = [" ".join(line) for line in lines]
    started = time.perf_counter()
    answers = [split(text) for text in texts]
    seconds = time.perf_counter() - started
    pairs = list(zip(map(boundaries, lines), map(boundaries, answers), strict=True))
    correct = sum(len(expected & found) for expected, found in pairs)
    expected, found = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    precision, recall = correct / found, correct / expected
    return {
        "boundaries": expected,
        "precision": round(precision, 4),
        "recall": round(recall, 4),
        "f1": round(2 * precision * recall / (precision + recall), 4),
        "megabytes_per_second": round(sum(map(len, texts)) / 1e6 / seconds, 2),
    }


def library(name: str, training_text: str) -> Splitter:
    """A splitter of a library that is not a dependency of bertjax."""
    if name == "pysbd":
        import pysbd

        return pysbd.Segmenter(language="en", clean=False).segment
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer(training_text).tokenize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of CoNLL-2003")
    parser.add_argument(
        "--with", dest="libraries", nargs="*", default=[], choices=["pysbd", "nltk"]
    )
    options = parser.parse_args()
    parts = {part: gold(options.data / f"{part}.txt") for part in ("train", "valid", "test")}
    lines = {part: [line for doc in documents for line in doc] for part, documents in parts.items()}
    training_text = "\n".join(" ".join(line) for line in lines["train"])
    splitters = {"bertjax": split_line}
    splitters |= {name: library(name, training_text) for name in options.libraries}
    result = {
        name: {part: measure(split, lines[part]) for part in lines}
        for name, split in splitters.items()
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
