"""Measures `bertjax prepare` against `encode_batch` alone on the same text; prints JSON.

`encode_batch` alone: the documents are in memory already, and Hugging Face's BertWordPieceTokenizer
encodes them on all cores; the encodings are discarded. `prepare` reads the files, splits sentences,
tokenizes, and writes a corpus to the disk. Both are repeated alternately, and the medians are
compared.

    python tools/measure_prepare.py --input '../shared/data/corpus/enwiki/*.gz' \
        --vocabulary ../shared/data/vocab/bert-base-uncased --megabytes 50 100 200 400

Also reported: the speed of the filters of documents on one core, and in the worker processes of
`prepare`, with the search for duplicates; and the peak resident memory of the process and of its
workers during `prepare`, for texts of several sizes, which repeat the input.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.corpus.filtering import DocumentStages, filter_blocks
from bertjax.corpus.filters import DocumentFilter, parse_filters
from bertjax.corpus.prepare import prepare
from bertjax.corpus.reading import Block
from bertjax.corpus.text import read_documents
from bertjax.corpus.workers import WorkerPool, available_cores

_BATCH_SIZE = 512
_FILTERS = ("gopher", "duplicates", "near_duplicates=0.8")


def time_encoding(texts: list[str], vocabulary: pathlib.Path, fast: bool) -> float:
    """Duration of tokenization alone, in seconds."""
    from tokenizers.implementations import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(str(vocabulary / "vocab.txt"))._tokenizer
    encode = tokenizer.encode_batch_fast if fast else tokenizer.encode_batch
    started = time.perf_counter()
    for first in range(0, len(texts), _BATCH_SIZE):
        encode(texts[first : first + _BATCH_SIZE], add_special_tokens=False)
    return time.perf_counter() - started


def time_preparation(inputs: list[str], vocabulary: pathlib.Path, workers: int) -> float:
    """Duration of `prepare`, from files to a corpus on disk, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        prepare(inputs, vocabulary, pathlib.Path(folder) / "corpus", workers=workers)
        return time.perf_counter() - started


def time_filter(texts: list[str], name: str) -> float:
    """Duration of a filter on one core, in seconds of processor time."""
    apply = DocumentFilter(parse_filters([name]))
    apply(texts[:1])
    started = time.process_time()
    apply(texts)
    return time.process_time() - started


def time_filter_in_workers(
    texts: list[str], name: str, vocabulary: pathlib.Path, workers: int
) -> float:
    """Duration of a filter in worker processes, without their start, in seconds."""
    bounds = parse_filters([name])
    groups = [texts[i : i + _BATCH_SIZE] for i in range(0, len(texts), _BATCH_SIZE)]

    def run(pool: WorkerPool, groups: list[list[str]]) -> None:
        for _ in filter_blocks((Block("train", list(group)) for group in groups), pool, bounds, ()):
            pass

    with WorkerPool(DocumentStages, (bounds, (str(vocabulary), True)), workers) as pool:
        run(pool, groups[: 2 * workers])  # starts the processes
        started = time.perf_counter()
        run(pool, groups)
        return time.perf_counter() - started


def peak_memory(texts: list[str], size: float, vocabulary: pathlib.Path, workers: int) -> dict:
    """Peak resident memory of `prepare` for `size` MB of text, in MB."""
    with tempfile.TemporaryDirectory() as folder:
        documents, written = itertools.cycle(texts), 0
        with open(f"{folder}/text.txt", "w", encoding="utf-8") as file:
            while written < size * 1e6:
                written += file.write(next(documents) + "\n\n")
        watch = MemoryWatch()
        watch.start()
        time_preparation([f"{folder}/text.txt"], vocabulary, workers)
        watch.stop()
    return {
        "parent": round(watch.peak_of_parent / 1e6),
        "workers": round(watch.peak_of_children / 1e6),
    }


class MemoryWatch(threading.Thread):
    """Samples the resident memory of this process and its children, in bytes."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak_of_children, self.peak_of_parent = 0, 0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(0.05):
            self.peak_of_parent = max(self.peak_of_parent, _resident("self"))
            tasks = pathlib.Path("/proc/self/task").glob("*/children")
            children = " ".join(path.read_text() for path in tasks).split()
            self.peak_of_children = max(self.peak_of_children, sum(map(_resident, children)))

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _resident(process: str) -> int:
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return 0
    lines = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", nargs="+", required=True, help="text files, globs")
    parser.add_argument(
        "--vocabulary", type=pathlib.Path, required=True, help="folder with a vocab.txt"
    )
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--megabytes",
        type=float,
        nargs="*",
        default=[],
        help="sizes of texts for which the memory of `prepare` is measured",
    )
    options = parser.parse_args()
    before = _resident("self")
    time_preparation(options.input, options.vocabulary, options.workers)  # warms the page cache
    texts = list(read_documents(options.input))
    megabytes = sum(map(len, texts)) / 1e6
    seconds: dict[str, list[float]] = {"prepare": [], "encode_batch": [], "encode_batch_fast": []}
    in_workers = {name: f"{name}, {options.workers} workers" for name in _FILTERS}
    seconds |= {name: [] for name in (*_FILTERS, *in_workers.values())}
    for _ in range(options.repeats):
        seconds["encode_batch"].append(time_encoding(texts, options.vocabulary, fast=False))
        preparation = time_preparation(options.input, options.vocabulary, options.workers)
        seconds["prepare"].append(preparation)
        seconds["encode_batch_fast"].append(time_encoding(texts, options.vocabulary, fast=True))
        for name in _FILTERS:
            seconds[name].append(time_filter(texts, name))
            seconds[in_workers[name]].append(
                time_filter_in_workers(texts, name, options.vocabulary, options.workers)
            )
    median = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "megabytes": round(megabytes, 2),
        "workers": options.workers,
        "megabytes_per_second": {n: round(megabytes / s, 2) for n, s in median.items()},
        "prepare_to_encode_batch": round(median["encode_batch"] / median["prepare"], 3),
        "prepare_to_encode_batch_fast": round(median["encode_batch_fast"] / median["prepare"], 3),
        "seconds": {n: [round(v, 3) for v in values] for n, values in seconds.items()},
        "resident_megabytes_before": round(before / 1e6),
        "peak_resident_megabytes": {
            f"{size:g} MB": peak_memory(texts, size, options.vocabulary, options.workers)
            for size in options.megabytes
        },
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
