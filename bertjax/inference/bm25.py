"""BM25: lexical retrieval, a baseline without a model.

Robertson and Zaragoza 2009, section 3.4, with the idf and the parameters of Lucene: k1=1.2, b=0.75,
log(1 + (N - n + 0.5) / (n + 0.5)). Words are runs of two or more letters or digits in lower case,
as in scikit-learn; there is no stemming and no list of stop words, which are those of a language.
A document without any word of the query is not found, as in Lucene.
"""

import logging

import numpy as np
from jaxtyping import Float

from bertjax.errors import UserError
from bertjax.inference.dense_retrieval import MANY_DOCUMENTS, Collection
from bertjax.inference.embeddings import Progress
from bertjax.metrics.retrieval import DEPTH

K1, B = 1.2, 0.75


def search(
    collection: Collection,
    depth: int = DEPTH,
    progress: Progress = lambda share, text: None,
) -> dict[str, list[str]]:
    """Returns the ids of the best documents of each query that have a word of it, best first.

    Args:
      collection: Documents and queries.
      depth: Maximum length of a ranking.
      progress: Called before indexing many documents, and after every query.

    Raises:
      UserError: the package bm25s is not installed, or no document has a word.
    """
    try:
        import bm25s
    except ImportError as error:
        raise UserError(f"bm25 requires bm25s ({error}); pip install 'bertjax[bm25]'") from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its own level is DEBUG

    def words_of(texts: list[str]) -> list[list[str]]:
        options = {"stopwords": [], "return_ids": False, "show_progress": False}
        return bm25s.tokenize(texts, **options)

    # A stable sort ranks equal scores in this order, as trec_eval does.
    ids = sorted(collection.documents, reverse=True)
    if len(ids) >= MANY_DOCUMENTS:
        progress(0.0, f"0 of {len(collection.queries):,} queries")
        progress(None, f"indexing {len(ids):,} documents by their words")
    corpus = words_of([collection.documents[key] for key in ids])
    if not any(corpus):
        raise UserError(
            "corpus.jsonl: got no document with a word, expected texts; bm25 needs words of two or "
            "more letters or digits"
        )
    index = bm25s.BM25(method="lucene", k1=K1, b=B)
    index.index(corpus, show_progress=False)
    queries = words_of(list(collection.queries.values()))
    found: dict[str, list[str]] = {}
    for key, words in zip(collection.queries, queries, strict=True):
        found[key] = [ids[number] for number in _best(_scores(index, words), depth)]
        progress(len(found) / len(queries), f"{len(found):,} of {len(queries):,} queries")
    return found


def _scores(index, words: list[str]) -> Float[np.ndarray, " n"]:
    """The score of every document; a word that none has adds nothing."""
    known = [word for word in words if word in index.vocab_dict]
    return index.get_scores(known) if known else np.zeros(index.scores["num_docs"])


def _best(scores: Float[np.ndarray, " n"], depth: int) -> list[int]:
    found = np.flatnonzero(scores)  # the idf of every word is positive
    return found[np.argsort(-scores[found], kind="stable")[:depth]].tolist()
