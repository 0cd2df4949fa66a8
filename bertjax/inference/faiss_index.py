"""Search of documents with an index of FAISS (Douze et al. 2024), exact or approximate.

An index is described as for `faiss.index_factory`: "Flat" compares all vectors, "HNSW32" follows a
graph of neighbours, "IVF256,Flat" compares those of the nearest of 256 clusters. Parameters of the
search may follow after a space: "IVF256,Flat nprobe=16" compares those of the nearest 16 clusters.
"""

import numpy as np

from bertjax.errors import UserError
from bertjax.inference import dense_retrieval
from bertjax.inference.dense_retrieval import MANY_DOCUMENTS, Collection
from bertjax.inference.embeddings import Progress, TextEmbedder
from bertjax.metrics.retrieval import DEPTH


def search(
    embedder: TextEmbedder,
    collection: Collection,
    description: str,
    depth: int = DEPTH,
    progress: Progress = lambda share, text: None,
) -> dict[str, list[str]]:
    """Returns the ids of the nearest documents of each query that the index finds, best first.

    The vectors of all documents are in memory.

    Args:
      embedder: The encoder.
      collection: Documents and queries.
      description: The index, as for `faiss.index_factory`, and parameters of the search, as for
        `faiss.ParameterSpace`.
      depth: Length of a ranking.
      progress: Called before indexing many documents.

    Raises:
      UserError: faiss is not installed, or it refuses the description, a parameter or the number of
        documents.
    """
    try:
        import faiss
    except ImportError as error:
        raise UserError(f"index requires faiss ({error}); pip install 'bertjax[faiss]'") from None
    queries, ids, groups = dense_retrieval.embed(embedder, collection)
    width = queries.shape[1]
    kind, _, parameters = description.partition(" ")
    try:
        index = faiss.index_factory(width, kind, faiss.METRIC_INNER_PRODUCT)
        faiss.ParameterSpace().set_index_parameters(index, parameters)
    except RuntimeError:
        raise UserError(
            f"index: got {description!r} for vectors of {width}, expected a description as for "
            "faiss.index_factory, such as Flat, HNSW32 or IVF256,Flat, and parameters of the "
            "search, such as 'IVF256,Flat nprobe=16'"
        ) from None
    documents = np.concatenate(list(groups))
    if len(ids) >= MANY_DOCUMENTS:
        progress(None, f"training the index {description} and adding {len(ids):,} vectors")
    try:
        index.train(documents)
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rpartition(": ")[2]
        raise UserError(
            f"index: got {description!r} and {len(ids):,} documents: {reason}; choose a smaller one"
        ) from None
    index.add(documents)
    scores, numbers = index.search(queries, min(depth, len(ids)))
    # Of equal scores the first number is first, as trec_eval sorts them; -1 is no document.
    order = np.lexsort((numbers, -scores), axis=1)
    rows = np.take_along_axis(numbers, order, axis=1).tolist()
    return {
        query: [ids[number] for number in row if number >= 0]
        for query, row in zip(collection.queries, rows, strict=True)
    }
