"""Evaluates unigram and bigram models on held-out text, as baselines of a run; prints JSON.

    python tools/measure_ngrams.py --model runs/gpt --input 'enwiki/*.gz' --held_out 'heldout/*.gz'

Baselines for a language model trained on the same input: text is tokenized with the run's tokenizer
and counted as in `bertjax evaluate perplexity`, and the context of a document's first token is the
end-of-text token. The run's own held-out loss, from its summary, is printed next to them; it is
computed on the windows of the run, while `bertjax evaluate perplexity` evaluates whole documents.

  unigram  relative frequencies with add-one smoothing
  bigram   Kneser and Ney's (1995): counts of pairs with the absolute discount n1 / (n1 + 2 n2), and
           for the discounted mass, the number of different pairs in which a token is the second
"""

import argparse
import json
import math
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.corpus import encoding, text
from bertjax.tokenizers import tokenizer as tokenizers_tokenizer
from bertjax.tokenizers.special_tokens import end_of_text

OBJECTIVES = ("causal_lm", "bidirectional_lm")


class Tokens:
    """The tokens of texts, each with its predecessor."""

    def __init__(self, inputs: list[str], tokenizer, num_predicted: int):
        end = end_of_text(tokenizer)
        before, after, self.bytes = [], [], 0
        encoder = encoding.SentenceEncoder(tokenizer)
        for document in text.read_documents(inputs):
            sentences = list(encoder.split(document))
            self.bytes += sum(len(sentence.text.encode()) for sentence in sentences)
            ids = np.concatenate([[0], *encoder.encode(sentences)]).astype(np.int64)
            ids[0] = tokenizer.sep_id if end is None else end
            ids = np.where(ids < num_predicted, ids, tokenizer.unk_id or 0)
            before.append(ids[:-1])
            after.append(ids[1:])
        self.before, self.after = np.concatenate(before), np.concatenate(after)

    def __len__(self) -> int:
        return len(self.after)


def unigram(train: Tokens, held_out: Tokens, size: int) -> float:
    """Loss of the unigram model in nats per token."""
    counts = np.bincount(train.after, minlength=size) + 1.0
    return float(-np.log(counts / counts.sum())[held_out.after].mean())


def bigram(train: Tokens, held_out: Tokens, size: int) -> float:
    """Loss of the bigram model in nats per token."""
    pairs, counts = np.unique(train.before * size + train.after, return_counts=True)
    once, twice = (int((counts == number).sum()) for number in (1, 2))
    discount = once / (once + 2 * twice)
    first, second = np.divmod(pairs, size)
    seen = np.bincount(first, counts, size)
    kinds = np.bincount(first, minlength=size)
    continuation = np.bincount(second, minlength=size) + 1.0
    continuation /= continuation.sum()
    queried = held_out.before * size + held_out.after
    place = np.minimum(np.searchsorted(pairs, queried), len(pairs) - 1)
    found = np.where(pairs[place] == queried, counts[place] - discount, 0.0)
    rest = np.where(seen > 0, discount * kinds / np.maximum(seen, 1), 1.0)[held_out.before]
    probabilities = (
        found / np.maximum(seen, 1)[held_out.before] + rest * continuation[held_out.after]
    )
    return float(-np.log(probabilities).mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a finished run")
    parser.add_argument("--input", required=True, nargs="+", help="training text files, globs")
    parser.add_argument("--held_out", required=True, nargs="+", help="held-out text files, globs")
    arguments = parser.parse_args()

    run = pathlib.Path(arguments.model)
    summary = json.loads((run / "summary.json").read_text())
    tokenizer = tokenizers_tokenizer.load(run / "tokenizer")
    (name,) = [name for name in OBJECTIVES if name in summary["config"]["objectives"]]
    objective = summary["config"]["objectives"][name]
    num_predicted = objective.get("softmax_size") or tokenizer.vocab_size
    train = Tokens(arguments.input, tokenizer, num_predicted)
    held_out = Tokens(arguments.held_out, tokenizer, num_predicted)
    nats = {
        "unigram": unigram(train, held_out, num_predicted),
        "bigram": bigram(train, held_out, num_predicted),
        "model": summary[f"{name}_loss"],
    }
    nats_to_bits = len(held_out) / held_out.bytes / math.log(2)
    print(
        json.dumps(
            {
                "tokens": len(held_out),
                "bytes": held_out.bytes,
                "nats_per_token": {name: round(value, 4) for name, value in nats.items()},
                "bits_per_byte": {
                    name: round(value * nats_to_bits, 4) for name, value in nats.items()
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
