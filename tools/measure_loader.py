"""Measures the speed of the input pipeline and its coverage of a prepared corpus; prints JSON.

    python tools/measure_loader.py --corpus corpus/ --max_seq_length 128

For each format: examples per second of wall time and of processor time (which does not depend on
other work on the machine), including `word_starts`, as medians over rounds that alternate between
the formats; and over all examples of one epoch, the share of tokens in no example (`left_out`), the
number of repetitions per token (`repeated`), and the share of positions without padding (`filled`).

`--step_seconds` also simulates training with steps that only sleep for so long, and prints the
share of the time in which a step waits for its batch (`input_stall`): 0.015 with `--batch_size 32`
is 20 times the step rate of BERT-mini on two CPU cores.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax import catalog
from bertjax.corpus import reader
from bertjax.data.format import ExampleSource, ExampleSpec
from bertjax.data.pipeline import batches
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.tokenizers import tokenizer

KINDS = (
    ("segment-pair", "next"),
    ("full-sentences", "none"),
    ("doc-sentences", "none"),
    ("segment-pair", "order"),
    ("sentence-pair", "order"),
    ("packed-documents", "none"),
)
"""Formats, and the second segment of their pairs."""
_STALL_SECONDS = 10
"""Duration of the simulated training of a format."""


class Positions:
    """A corpus with the same records and sentences whose token ids are their positions."""

    dtype = np.dtype("<u4")

    def __init__(self, corpus: reader.Corpus):
        self._corpus = corpus
        self.tokens, self.sentences = corpus.tokens, corpus.sentences
        self.document = corpus.document
        self.begin = np.append(0, np.cumsum(corpus.tokens))

    def read(self, numbers: np.ndarray) -> list[bytes]:
        """Reads records, with token ids replaced by positions."""
        found = []
        for number, record in zip(numbers.tolist(), self._corpus.read(numbers), strict=True):
            lengths = np.frombuffer(record, self._corpus.dtype)[self.tokens[number] :]
            positions = np.arange(self.begin[number], self.begin[number + 1])
            found.append(np.concatenate([positions, lengths]).astype(self.dtype).tobytes())
        return found


def rates(
    examples: ExampleSource, batch_size: int, count: int, threads: int, first_step: int
) -> tuple[float, float]:
    """Examples per second of wall time and of processor time, after a warmup."""
    with batches(examples, batch_size=batch_size, start_step=first_step, threads=threads) as found:
        for _ in range(-(-8192 // batch_size)):
            next(found)
        started, busy = time.perf_counter(), time.process_time()
        for _ in range(-(-count // batch_size)):
            next(found)
        return count / (time.perf_counter() - started), count / (time.process_time() - busy)


def input_stall(
    examples: ExampleSource, batch_size: int, steps: int, threads: int, step_seconds: float
) -> float:
    """Share of the time of steps that only sleep in which they wait for batches."""
    waited = 0.0
    with batches(examples, batch_size=batch_size, start_step=0, threads=threads) as found:
        next(found)
        started = time.perf_counter()
        for _ in range(steps):
            before = time.perf_counter()
            next(found)
            waited += time.perf_counter() - before
            time.sleep(step_seconds)
        return waited / (time.perf_counter() - started)


def make_examples(kind: tuple[str, str], spec: ExampleSpec) -> ExampleSource:
    """Examples of a format."""
    format, pair = kind
    data = {"pair": pair, "short_seq_prob": None}
    return catalog.load("data/formats", format).Format.examples(
        dataclasses.replace(spec, data=data)
    )


def coverage(corpus: reader.Corpus, kind: tuple[str, str], spec: ExampleSpec) -> dict[str, float]:
    """Shares of tokens left out and repeated, and of positions filled, in one epoch."""
    total = int(corpus.tokens.sum())
    specials = spec.specials.map_ids(lambda _: total)._replace(pad_id=total)
    examples = make_examples(
        kind,
        dataclasses.replace(spec, split=Positions(corpus), specials=specials, word_starts=None),
    )
    seen, filled = np.zeros(total + 1, np.int64), 0
    for first in range(0, examples.num_examples, 2048):
        stop = min(first + 2048, examples.num_examples)
        batch = examples.build(0, np.arange(first, stop))
        seen += np.bincount(batch["input_ids"].reshape(-1), minlength=total + 1)
        filled += int(batch["attention_mask"].sum())
    seen = seen[:-1]
    return {
        "left_out": round(float(np.mean(seen == 0)), 4),
        "repeated": round(float(np.maximum(seen - 1, 0).sum() / total), 4),
        "filled": round(filled / (examples.num_examples * examples.max_seq_length), 4),
    }


def summary(measured: list[tuple[float, float]]) -> dict[str, float | list[int]]:
    """Medians over the rounds of `rates`, and each round."""
    by_clock, by_processor = zip(*measured, strict=True)
    return {
        "examples_per_second": round(statistics.median(by_clock)),
        "examples_per_processor_second": round(statistics.median(by_processor)),
        "rounds": [round(value) for value in by_clock],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", required=True, help="a folder that `bertjax prepare` wrote")
    parser.add_argument("--split", default="train")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=50_000, help="examples per round")
    parser.add_argument(
        "--step_seconds", type=float, help="measure the input stall of steps of this duration"
    )
    arguments = parser.parse_args()

    corpus = reader.open_corpus(arguments.corpus, arguments.split)
    corpus_tokenizer = tokenizer.load(pathlib.Path(arguments.corpus) / "tokenizer")
    spec = ExampleSpec(
        corpus,
        {},
        seed=0,
        max_seq_length=arguments.max_seq_length,
        specials=SequenceTemplate.from_tokenizer(corpus_tokenizer),
        word_starts=corpus_tokenizer.word_starts,
    )
    sources = [make_examples(kind, spec) for kind in KINDS]
    measured: list[list[tuple[float, float]]] = [[] for _ in sources]
    for turn in range(arguments.rounds):
        for examples, found in zip(sources, measured, strict=True):
            size, count = arguments.batch_size, arguments.examples
            found.append(rates(examples, size, count, arguments.threads, turn * count // size))
    stalls: list[dict[str, float]] = [{} for _ in sources]
    if arguments.step_seconds:
        for examples, stall in zip(sources, stalls, strict=True):
            size, steps = arguments.batch_size, round(_STALL_SECONDS / arguments.step_seconds)
            share = input_stall(examples, size, steps, arguments.threads, arguments.step_seconds)
            stall["input_stall"] = round(share, 4)
    result = {
        "corpus": {"records": corpus.num_records, "tokens": corpus.num_tokens},
        "cores": os.cpu_count(),
        "settings": vars(arguments),
        "formats": {
            ", ".join(kind): {
                **summary(found),
                **stall,
                "num_examples": examples.num_examples,
                **coverage(corpus, kind, spec),
            }
            for examples, found, stall, kind in zip(sources, measured, stalls, KINDS, strict=True)
        },
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
