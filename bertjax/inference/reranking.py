"""Rerank retrieved documents by a cross-encoder: every query is read with each of its candidates.

load     run -> the fine-tuned model, which scores pairs of texts
rerank   rankings, collection -> rankings whose first documents are sorted by these scores
"""

import dataclasses
import itertools
import pathlib
import tempfile
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from bertjax import build, pretrained
from bertjax.errors import UserError
from bertjax.inference import predict
from bertjax.inference.dense_retrieval import Collection
from bertjax.inference.embeddings import Progress
from bertjax.inference.growing_arrays import GrowingArrays, ResumableTexts
from bertjax.inference.predict import Predictor

_PAIRS_PER_CHUNK = 4096
"""Pairs that are tokenized at a time; among them batches are of similar length."""


@dataclasses.dataclass(frozen=True)
class Reranker:
    """A cross-encoder with one output.

    Attributes:
      predictor: The fine-tuned model.
      batch_size: Pairs per batch.
    """

    predictor: Predictor
    batch_size: int

    def score(
        self, queries: Sequence[str], passages: Sequence[str]
    ) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Returns the score of each pair, and whether it was truncated."""
        spec = predict.encoding_spec(
            self.predictor.config, self.predictor.tokenizer, self.batch_size
        )
        encoded = spec.encode((list(queries), list(passages)))
        outputs = self.predictor.outputs(spec.batches("predict", encoded, None))
        return outputs.reshape(len(queries)), encoded.truncated


def is_cross_encoder(model: str | pretrained.Pretrained) -> bool:
    """Whether a model has one score for a pair of texts."""
    config = pretrained.load(model).config
    task = config.task if "task" in config else {}
    num_outputs = getattr(build.task(task)(), "num_outputs", 0) if "name" in task else 0
    return num_outputs == 1 and len(task.get("texts", ())) == 2


def load(
    model: str | pretrained.Pretrained, *, batch_size: int, precision: str = "auto"
) -> Reranker:
    """Loads a cross-encoder: a run of the config `cross_encoder`, or a regression of text pairs.

    A classifier with one output that transformers saved is imported as such a regression.

    Args:
      model: RUN, RUN@STEP or RUN@best, or a loaded model; see `pretrained.load`.
      batch_size: Pairs per batch.
      precision: As `config.model.precision`.

    Raises:
      UserError: there is no such run, or its model does not score pairs.
    """
    run = pretrained.load(model)
    if not is_cross_encoder(run):
        raise UserError(
            f"--reranker: got {run.source.run}, expected a model with one score for two texts, "
            "such as a run of bertjax finetune --config cross_encoder"
        )
    predictor = predict.load(run, precision=precision)
    size = predictor.mesh.size
    return Reranker(predictor, -(-batch_size // size) * size)


def rerank(
    reranker: Reranker,
    rankings: Mapping[str, Sequence[str]],
    collection: Collection,
    depth: int,
    progress: Progress,
    parts: pathlib.Path | None = None,
) -> tuple[dict[str, list[str]], int]:
    """Sorts the first documents of every ranking by the scores of a cross-encoder.

    Documents with equal scores keep their order, and so do those after the first `depth`.

    Args:
      reranker: The model.
      rankings: Ids of documents of each query, best first.
      collection: Documents and queries.
      depth: Number of documents of each query that are scored.
      progress: Called from time to time.
      parts: Folder in which scores are stored, to resume; None for none.

    Returns:
      The rankings, and the number of pairs that were truncated.

    Raises:
      UserError: scores of other texts are stored.
    """
    pairs = [
        (collection.queries[query], collection.documents[key])
        for query, ranked in rankings.items()
        for key in ranked[:depth]
    ]
    if not pairs:
        return {query: [*ranked] for query, ranked in rankings.items()}, 0
    with tempfile.TemporaryDirectory() as temporary:
        scores, truncated = _score(reranker, pairs, progress, parts or pathlib.Path(temporary))
    found, start = {}, 0
    for query, ranked in rankings.items():
        count = len(ranked[:depth])
        order = np.argsort(-scores[start : start + count], kind="stable")
        found[query] = [*(ranked[number] for number in order), *ranked[depth:]]
        start += count
    return found, int(truncated.sum())


def _score(
    reranker: Reranker,
    pairs: Sequence[tuple[str, str]],
    progress: Progress,
    parts: pathlib.Path,
) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Scores the pairs that a folder does not have, and returns all scores."""
    texts = ResumableTexts((f"{query} {passage}" for query, passage in pairs), "--data")
    with GrowingArrays(parts / "pairs") as arrays:
        if arrays.progress is not None:
            texts.resume(arrays.progress, parts)
        for start in range(texts.num_done, len(pairs), _PAIRS_PER_CHUNK):
            chunk = pairs[start : start + _PAIRS_PER_CHUNK]
            scores, truncated = reranker.score(*zip(*chunk, strict=True))
            arrays.append("scores", scores)
            arrays.append("truncated", truncated)
            texts.done(len([*itertools.islice(texts, len(chunk))]))
            arrays.save(texts.progress())
            progress(texts.num_done / len(pairs), f"{texts.num_done:,} of {len(pairs):,} pairs")
        return np.array(arrays.read("scores")), np.array(arrays.read("truncated"))
