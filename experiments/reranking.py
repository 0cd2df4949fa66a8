"""Question: what a cross-encoder and late interaction add to a bi-encoder and to BM25.

    python experiments/reranking.py --data retrieval/cranfield --output cranfield_halves
    bertjax finetune --config cross_encoder:small --data cranfield_halves/train.jsonl \
        --init runs/minilm --workdir runs/cross_encoder
    bertjax evaluate retrieval --model bm25 --reranker runs/cross_encoder --data cranfield_halves

Splits the judged queries of a collection in BEIR's layout at random. Those of the first half become
`train.jsonl`: every relevant document with hard negatives, sampled from the documents that BM25
ranks up to --depth and that are not judged relevant. Those of the other half become a collection in
BEIR's layout, with all documents, for `bertjax evaluate retrieval`.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bertjax.errors import UserError
from bertjax.inference import bm25, dense_retrieval
from bertjax.io import files as io_files
from bertjax.io import storage


def main() -> None:
    """Writes the table and the collection."""
    arguments = _parser().parse_args()
    try:
        collection = dense_retrieval.read(arguments.data)
        rankings = bm25.search(collection, arguments.depth)
    except UserError as error:
        sys.exit(f"reranking: error: {error}")
    random = np.random.default_rng(arguments.seed)
    queries = random.permutation(list(collection.queries)).tolist()
    half = len(queries) // 2
    rows = [
        row
        for query in queries[:half]
        for row in _triples(collection, query, rankings[query], arguments.negatives, random)
    ]
    folder = pathlib.Path(arguments.output)
    storage.make_folder(folder / "qrels")
    _write_lines(folder / "train.jsonl", rows)
    _write_lines(folder / "corpus.jsonl", _records(collection.documents))
    held_out = {query: collection.queries[query] for query in queries[half:]}
    _write_lines(folder / "queries.jsonl", _records(held_out))
    judged = [
        f"{query}\t{document}\t{gain}\n"
        for query in held_out
        for document, gain in collection.judgements[query].items()
    ]
    header = "query-id\tcorpus-id\tscore\n"
    io_files.write_text(folder / "qrels" / "test.tsv", header + "".join(judged))
    print(f"{half} queries with {len(rows)} relevant documents to train, {len(held_out)} to test")


def _triples(
    collection: dense_retrieval.Collection,
    query: str,
    ranking: Sequence[str],
    num_negatives: int,
    random: np.random.Generator,
) -> Iterator[dict[str, str]]:
    """Yields a row of texts for each relevant document of a query."""
    gains = collection.judgements[query]
    texts = collection.documents
    relevant = [document for document, gain in gains.items() if gain > 0]
    candidates = [document for document in ranking if document not in relevant]
    for document in filter(texts.get, relevant):  # Cranfield has documents without text
        chosen = random.choice(candidates, num_negatives, replace=False)
        yield {
            "query": collection.queries[query],
            "positive": texts[document],
            **{f"negative_{number}": texts[other] for number, other in enumerate(chosen, 1)},
        }


def _records(texts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"_id": key, "text": text} for key, text in texts.items()]


def _write_lines(path: pathlib.Path, rows: list[dict[str, str]]) -> None:
    io_files.write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("data", "output"):
        parser.add_argument(f"--{name}", required=True, metavar="DIR")
    parser.add_argument("--negatives", type=int, default=4, metavar="N", help="for each positive")
    parser.add_argument("--depth", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
