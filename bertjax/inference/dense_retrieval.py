"""Dense retrieval: exact search of documents by the cosine of their embeddings with a query's.

read     folder in BEIR's layout (Thakur et al. 2021) -> documents, judged queries, judgements
search   embedder, collection -> the nearest documents of each query

A document is its title, a space and its text, as in BEIR. Documents with equal scores are ranked by
their ids in descending order, as in trec_eval.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.corpus.format import Table
from bertjax.errors import UserError
from bertjax.huggingface.sentence_transformers import DOCUMENT, QUERY
from bertjax.inference.embeddings import TextEmbedder
from bertjax.io.file_kinds import COMPRESSIONS
from bertjax.metrics.retrieval import DEPTH
from bertjax.tasks.sequence import files

_LAYOUT = "corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv"
_MAX_LISTED = 12

MANY_DOCUMENTS = 100_000
"""From this number on, the steps of a search that have no progress are announced."""


@dataclasses.dataclass(frozen=True)
class Collection:
    """Documents, queries, and judgements of their relevance.

    Attributes:
      documents: Text of each document, by id.
      queries: Text of each judged query, by id.
      judgements: Gain of each judged document, by query and document.
      num_unjudged: Number of queries of the file without judgements, which are left out.
    """

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, int]]
    num_unjudged: int

    def counts(self) -> dict[str, int]:
        """The numbers of its parts; an empty document has neither title nor text."""
        return {
            "queries": len(self.queries),
            "documents": len(self.documents),
            "empty_documents": sum(not text for text in self.documents.values()),
            "judgements": sum(map(len, self.judgements.values())),
            "unjudged": self.num_unjudged,
        }


def read(data: str, split: str = "test") -> Collection:
    """Reads `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`; each may be compressed.

    Args:
      data: The folder.
      split: Name of the judgements.

    Raises:
      UserError: a file or column is missing, an id occurs twice, a query has no text, a judgement
        names an unknown query or document, or a gain is not an integer.
    """
    folder = pathlib.Path(data)
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: --data expects one with {_LAYOUT}, as in BEIR")
    locations = [_find(folder / name) for name in ("corpus.jsonl", "queries.jsonl")]
    judged = _find(folder / "qrels" / f"{split}.tsv")
    documents = _read_texts(locations[0], ("title", "text"), allow_empty=True)
    queries = _read_texts(locations[1], ("text",), allow_empty=False)
    judgements = _read_judgements(judged, queries, documents)
    return Collection(
        documents,
        {query: queries[query] for query in judgements},
        judgements,
        len(queries) - len(judgements),
    )


def _find(path: pathlib.Path) -> str:
    """Returns the path of a file that may be compressed."""
    for ending in ("", *COMPRESSIONS):
        if (found := path.with_name(path.name + ending)).is_file():
            return str(found)
    names = sorted(each.name for each in path.parent.iterdir()) if path.parent.is_dir() else []
    listed = ", ".join(names[:_MAX_LISTED]) or "nothing"
    raise UserError(
        f"no {path.name} in {path.parent}: got {listed}, expected {_LAYOUT} as in BEIR, also "
        "compressed"
    )


def _columns(table: Table, *names: str) -> list[list[Any]]:
    for name in names:
        if name not in table.columns:
            place = " in the first line, separated by tabs" if ".tsv" in table.path else ""
            raise UserError(
                f"{table.path} has no column {name!r}: got {', '.join(table.columns)}, expected "
                f"{', '.join(names)}{place}; rename one"
            )
    return [table.columns[name] for name in names]


def _read_texts(path: str, fields: tuple[str, ...], *, allow_empty: bool) -> dict[str, str]:
    """Reads the texts of documents or queries by id; only the column of the last is required."""
    table = files.read_tables([path])
    ids, last = _columns(table, "_id", fields[-1])
    empty = [""] * len(ids)
    columns = [*(table.columns.get(name, empty) for name in fields[:-1]), last]
    texts: dict[str, str] = {}
    for location, identity, *parts in zip(table.locations, ids, *columns, strict=True):
        key = _identity(identity, location, "_id")
        if key in texts:
            raise UserError(
                f"{location}: _id: got {key!r} twice, expected distinct ids; remove one"
            )
        if not all(isinstance(part, str | None) for part in parts):
            raise UserError(f"{location}: got {parts}, expected strings for {', '.join(fields)}")
        texts[key] = " ".join(part or "" for part in parts).strip()
        if not (texts[key] or allow_empty):
            raise UserError(
                f"{location}: text: got {parts[-1]!r}, expected one that is not empty; add it, or "
                "remove the row"
            )
    return texts


def _identity(value: Any, location: str, column: str) -> str:
    if not isinstance(value, str | int) or value == "":
        raise UserError(
            f"{location}: {column}: got {value!r}, expected an id; fix or remove the row"
        )
    return str(value)


def _read_judgements(
    path: str, queries: Mapping[str, str], documents: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    table = files.read_tables([path])
    columns = ("query-id", "corpus-id", "score")
    judgements: dict[str, dict[str, int]] = {}
    for location, query, document, gain in zip(
        table.locations, *_columns(table, *columns), strict=True
    ):
        if query not in queries:
            raise UserError(
                f"{location}: query-id: got {query!r}, which is not in queries.jsonl; remove the "
                "row, or add the query"
            )
        if document not in documents:
            raise UserError(
                f"{location}: corpus-id: got {document!r}, which is not in corpus.jsonl; remove "
                "the row, or add the document"
            )
        own = judgements.setdefault(query, {})
        if document in own:
            raise UserError(
                f"{location}: got a second judgement of document {document!r} for query {query!r}, "
                "expected one; remove the row"
            )
        try:
            own[document] = int(gain)
        except ValueError:
            raise UserError(
                f"{location}: score: got {gain!r}, expected an integer; fix or remove the row"
            ) from None
    return judgements


def embed(
    embedder: TextEmbedder, collection: Collection
) -> tuple[Float[np.ndarray, "Q D"], list[str], Iterator[Float[np.ndarray, "n D"]]]:
    """Embeds queries and documents, each with the model's prompt for them.

    Returns:
      The vectors of the queries; the ids of the documents, descending as trec_eval sorts equal
      scores; and an iterator over groups of their vectors.
    """
    ids = sorted(collection.documents, reverse=True)
    count, total = len(collection.queries), len(collection.queries) + len(ids)
    prompts = embedder.settings.prompts
    queries = embedder.embed(
        collection.queries.values(), total=total, prompt=prompts.get(QUERY, "")
    )
    vectors = np.concatenate(list(queries))
    texts = (collection.documents[key] for key in ids)
    documents = embedder.embed(texts, total=total, first=count, prompt=prompts.get(DOCUMENT, ""))
    return vectors, ids, documents


def search(
    embedder: TextEmbedder, collection: Collection, depth: int = DEPTH
) -> dict[str, list[str]]:
    """Returns the ids of the nearest documents of each query, best first: `depth`, or all.

    All documents are compared with all queries; their vectors are not kept.

    Args:
      embedder: The encoder.
      collection: Documents and queries.
      depth: Length of a ranking.
    """
    embedded, ids, documents = embed(embedder, collection)
    queries, first = jnp.asarray(embedded), 0
    scores = jnp.full((len(queries), depth), -jnp.inf)
    numbers = jnp.full((len(queries), depth), -1)
    for vectors in documents:
        # Of equal scores the earlier one is kept.
        scores, numbers = _keep_nearest(scores, numbers, queries, vectors, first)
        first += len(vectors)
    rows = np.asarray(numbers).tolist()
    return {
        query: [ids[number] for number in row if number >= 0]
        for query, row in zip(collection.queries, rows, strict=True)
    }


@jax.jit
def _keep_nearest(
    scores: Float[Array, "Q K"],
    numbers: Int[Array, "Q K"],
    queries: Float[Array, "Q D"],
    documents: Float[Array, "n D"],
    first: Int[Array, ""],
) -> tuple[Float[Array, "Q K"], Int[Array, "Q K"]]:
    """Merges more documents, numbered from `first`, into the K nearest ones of each query."""
    # The default precision of accelerators is lower, and would reorder near neighbours.
    new_scores = jnp.matmul(queries, documents.T, precision=jax.lax.Precision.HIGHEST)
    return merge_nearest(scores, numbers, new_scores, first)


def merge_nearest(
    scores: Float[Array, "Q K"],
    numbers: Int[Array, "Q K"],
    new_scores: Float[Array, "Q n"],
    first: Int[Array, ""],
) -> tuple[Float[Array, "Q K"], Int[Array, "Q K"]]:
    """Returns the K best of ranked documents and of others, numbered from `first`."""
    new_numbers = jnp.broadcast_to(first + jnp.arange(new_scores.shape[1]), new_scores.shape)
    best, chosen = jax.lax.top_k(jnp.concatenate([scores, new_scores], axis=1), scores.shape[1])
    merged = jnp.concatenate([numbers, new_numbers], axis=1)
    return best, jnp.take_along_axis(merged, chosen, axis=1)
