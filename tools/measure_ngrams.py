"""Measures what counts of tokens, and of pairs of tokens, know of held-out text; prints JSON.

    python tools/measure_ngrams.py --init runs/gpt --input 'enwiki/*.gz' --held_out 'heldout/*.gz'

Baselines of a language model that was trained on the same input: the tokens are those of the run's
own tokenizer, cut and counted as `bertjax perplexity` does, and each document begins with the end
of the one before. Beside them stands the run's own held-out loss, from its summary: of its
own windows, where `bertjax perplexity` reads every document of a decoder's input.

  unigram  frequencies, one added to each
  bigram   Kneser and Ney's (1995): a pair's count less a discount, n1 / (n1 + 2 n2), and for the
           rest in how many different pairs a token comes second
"""

import argparse
import json
import math
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.corpus import encoding, text
from bertjax.tokenizers import tokenizer
from bertjax.tokenizers.special_tokens import end_of_text

OBJECTIVES = ("causal_lm", "bidirectional_lm")


class Tokens:
    """The tokens of texts, each with the one before it."""

    def __init__(self, inputs: list[str], pieces, said: int):
        end = end_of_text(pieces)
        before, after, self.bytes = [], [], 0
        for document in text.read_documents(inputs):
            sentences = list(encoding.split_document(document, encoding.sentence_separator(pieces)))
            self.bytes += sum(len(sentence.encode()) for sentence in sentences)
            ids = np.concatenate([[0], *pieces.encode_batch(sentences)]).astype(np.int64)
            ids[0] = pieces.sep_id if end is None else end
            ids = np.where(ids < said, ids, pieces.unk_id or 0)
            before.append(ids[:-1])
            after.append(ids[1:])
        self.before, self.after = np.concatenate(before), np.concatenate(after)

    def __len__(self) -> int:
        return len(self.after)


def unigram(train: Tokens, held_out: Tokens, size: int) -> float:
    """Nats a token."""
    counts = np.bincount(train.after, minlength=size) + 1.0
    return float(-np.log(counts / counts.sum())[held_out.after].mean())


def bigram(train: Tokens, held_out: Tokens, size: int) -> float:
    """Nats a token."""
    pairs, counts = np.unique(train.before * size + train.after, return_counts=True)
    once, twice = (int((counts == number).sum()) for number in (1, 2))
    discount = once / (once + 2 * twice)
    first, second = np.divmod(pairs, size)
    seen = np.bincount(first, counts, size)
    kinds = np.bincount(first, minlength=size)
    comes_second = np.bincount(second, minlength=size) + 1.0
    comes_second /= comes_second.sum()
    wanted = held_out.before * size + held_out.after
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    found = np.where(pairs[place] == wanted, counts[place] - discount, 0.0)
    rest = np.where(seen > 0, discount * kinds / np.maximum(seen, 1), 1.0)[held_out.before]
    chances = found / np.maximum(seen, 1)[held_out.before] + rest * comes_second[held_out.after]
    return float(-np.log(chances).mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--init", required=True, help="the folder of a finished run")
    parser.add_argument("--input", required=True, nargs="+", help="what it was trained on")
    parser.add_argument("--held_out", required=True, nargs="+", help="what is measured")
    arguments = parser.parse_args()

    run = pathlib.Path(arguments.init)
    summary = json.loads((run / "summary.json").read_text())
    pieces = tokenizer.load(run / "tokenizer")
    (name,) = [name for name in OBJECTIVES if name in summary["config"]["objectives"]]
    said = summary["config"]["objectives"][name].get("softmax_size") or pieces.vocab_size
    train = Tokens(arguments.input, pieces, said)
    held_out = Tokens(arguments.held_out, pieces, said)
    nats = {
        "unigram": unigram(train, held_out, said),
        "bigram": bigram(train, held_out, said),
        "model": summary[f"{name}_loss"],
    }
    a_byte = len(held_out) / held_out.bytes / math.log(2)
    print(
        json.dumps(
            {
                "tokens": len(held_out),
                "bytes": held_out.bytes,
                "nats_per_token": {name: round(value, 4) for name, value in nats.items()},
                "bits_per_byte": {name: round(value * a_byte, 4) for name, value in nats.items()},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
