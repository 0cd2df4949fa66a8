"""Late interaction: exact search of documents by MaxSim of token vectors (ColBERT).

load     run -> LateInteraction
search   LateInteraction, collection -> the best documents of each query

All documents are compared with all queries, in batches; their vectors are not kept.
"""

import dataclasses
import io
import itertools
import json
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertjax import pretrained
from bertjax.errors import UserError
from bertjax.inference import predict
from bertjax.inference.dense_retrieval import Collection, merge_nearest
from bertjax.inference.embeddings import Progress
from bertjax.inference.growing_arrays import ResumableTexts
from bertjax.inference.predict import Predictor
from bertjax.io.files import write_atomic
from bertjax.layers.text_embeddings import maxsim
from bertjax.tasks.colbert.dataset import TokenVectors
from bertjax.tasks.colbert.encoding import make_encoder
from bertjax.tasks.dataset import EncodingSpec

_TASK = "colbert"
_NEAREST = "nearest.npz"
_DOCUMENTS = 256
"""Documents that are compared at a time; among them batches are of similar length."""


@dataclasses.dataclass(frozen=True)
class LateInteraction:
    """A model of token vectors.

    Attributes:
      predictor: The fine-tuned model.
      spec: Lengths and batch size.
    """

    predictor: Predictor
    spec: EncodingSpec

    def encode(self, texts: Sequence[str], *, is_query: bool) -> tuple[TokenVectors, int]:
        """Returns the vectors of texts, and how many of them were truncated."""
        query_length = self.predictor.config.task.query_length
        encoder = make_encoder(self.spec, query_length)
        encoded = encoder.encode(texts, [is_query] * len(texts))
        outputs = self.predictor.outputs(self.spec.batches("predict", encoded, None))
        return TokenVectors.of(encoded, outputs, query_length), int(encoded.truncated.sum())


def is_trained_for(model: str | pretrained.Pretrained) -> bool:
    """Whether a run is one of the config `colbert`."""
    config = pretrained.load(model).config
    return "task" in config and config.task.name == _TASK


def load(
    model: str | pretrained.Pretrained, *, max_length: int, batch_size: int, precision: str
) -> LateInteraction:
    """Loads a run of the config `colbert`.

    Args:
      model: RUN, RUN@STEP or RUN@best, or a loaded model; see `pretrained.load`.
      max_length: Maximum number of tokens of a document; 0 for that of the run.
      batch_size: Number of texts per batch.
      precision: As `config.model.precision`.

    Raises:
      UserError: there is no such run, or documents would be longer than in training.
    """
    predictor = predict.load(model, precision=precision)
    size = -(-batch_size // predictor.mesh.size) * predictor.mesh.size
    spec = predict.encoding_spec(predictor.config, predictor.tokenizer, size)
    if max_length > spec.max_seq_length:
        raise UserError(
            f"max_length: got {max_length}, expected at most {spec.max_seq_length}, the length of "
            "the run"
        )
    length = max_length or spec.max_seq_length
    return LateInteraction(predictor, dataclasses.replace(spec, max_seq_length=length))


def search(
    model: LateInteraction,
    collection: Collection,
    depth: int,
    progress: Progress,
    parts: pathlib.Path | None = None,
) -> tuple[dict[str, list[str]], int]:
    """Ranks all documents for each query.

    Args:
      model: The model.
      collection: Documents and queries.
      depth: Length of a ranking.
      progress: Called from time to time.
      parts: Folder in which the best documents so far are stored, to resume; None for none.

    Returns:
      The ids of the best documents of each query, `depth` or all, and the number of truncated
      texts.

    Raises:
      UserError: the best documents among others are stored.
    """
    # Of equal scores the earlier one is kept.
    ids = sorted(collection.documents, reverse=True)
    texts = [*collection.queries.values()]
    vectors, num_truncated = model.encode(texts, is_query=True)
    queries, query_mask = map(jnp.asarray, vectors.queries(slice(None)))
    scores = jnp.full((len(queries), depth), -jnp.inf)
    numbers = jnp.full((len(queries), depth), -1)
    documents = (collection.documents[key] for key in ids)
    reading = ResumableTexts(itertools.chain(texts, documents), "--data")
    if parts is not None and (parts / _NEAREST).exists():
        with np.load(parts / _NEAREST) as stored:
            scores, numbers = jnp.asarray(stored["scores"]), jnp.asarray(stored["numbers"])
            done = json.loads(str(stored["progress"]))
        reading.resume(done, parts)
        num_truncated = done["truncated"]
    else:
        reading.done(len([*itertools.islice(reading, len(texts))]))
    while group := [*itertools.islice(reading, _DOCUMENTS)]:
        encoded, cut = model.encode(group, is_query=False)
        num_truncated += cut
        first = reading.num_done - len(texts)
        scores, numbers = _keep_best(
            scores, numbers, queries, query_mask, *encoded.documents(slice(None)), first
        )
        reading.done(len(group))
        if parts is not None:
            done = reading.progress() | {"truncated": num_truncated}
            with io.BytesIO() as content:
                np.savez(content, scores=scores, numbers=numbers, progress=json.dumps(done))
                write_atomic(parts / _NEAREST, content.getvalue())
        num_done = first + len(group)
        progress(num_done / len(ids), f"{num_done:,} of {len(ids):,} documents")
    rows = np.asarray(numbers).tolist()
    found = {
        query: [ids[number] for number in row if number >= 0]
        for query, row in zip(collection.queries, rows, strict=True)
    }
    return found, num_truncated


@jax.jit
def _keep_best(
    scores: Float[Array, "A K"],
    numbers: Int[Array, "A K"],
    queries: Float[Array, "A Q E"],
    query_mask: Bool[Array, "A Q"],
    documents: Float[Array, "n L E"],
    document_mask: Bool[Array, "n L"],
    first: Int[Array, ""],
) -> tuple[Float[Array, "A K"], Int[Array, "A K"]]:
    """Merges more documents, numbered from `first`, into the K best ones of each query."""

    def of_query(query: tuple[Array, Array]) -> Float[Array, " n"]:
        vectors, mask = query
        return maxsim(vectors[None], mask[None], documents, document_mask)[0]

    # One query at a time: the similarities of all tokens would not fit in memory.
    new_scores = jax.lax.map(of_query, (queries, query_mask))
    return merge_nearest(scores, numbers, new_scores, first)
