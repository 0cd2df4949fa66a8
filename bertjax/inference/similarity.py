"""Semantic textual similarity: that of sentence embeddings, compared with human scores.

read           GLUE's folder or a table -> pairs of sentences with scores
similarities   embedder, pairs -> the similarity of each pair: the cosine, or the dot product
correlations   similarities, scores -> Pearson and Spearman
"""

import pathlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64, Num

from bertjax.errors import UserError
from bertjax.inference.embeddings import TextEmbedder
from bertjax.metrics import classification
from bertjax.tasks.glue import files as glue_files
from bertjax.tasks.glue.table import glue_task
from bertjax.tasks.sequence import files, labels
from bertjax.tasks.sequence.examples import SequenceExamples


def read(data: str, columns: Mapping[str, str]) -> SequenceExamples:
    """Reads pairs of sentences with scores.

    Args:
      data: The folder with GLUE's `STS-B/`, or `tfds:DIR`, of which the dev split is read; or a
        table in a file.
      columns: Columns of a table: `text`, `text_pair` and `label`; "" for one with a common name.

    Raises:
      UserError: the data or a column is missing, a score is not a number, or there are fewer than
        two pairs.
    """
    if data.startswith("tfds:") or pathlib.Path(data).is_dir():
        for option, name in columns.items():
            if name:
                raise UserError(
                    f"--{option}: got {name!r}, expected none with a folder of GLUE, whose columns "
                    "are known; leave it out"
                )
        examples = glue_files.read(data, glue_task("stsb"))["dev"]
    else:
        examples = _read_table(data, columns)
    if len(examples) < 2:
        raise UserError(f"{data}: pairs: got {len(examples)}, expected 2 or more for a correlation")
    return examples


def _read_table(path: str, columns: Mapping[str, str]) -> SequenceExamples:
    if not pathlib.Path(path).is_file():
        raise UserError(
            f"no file or folder {path}: --data expects the folder with GLUE's STS-B/, or a table "
            "of sentence pairs with scores"
        )
    table = files.read_tables([path])
    chosen = files.choose_columns(table, columns)
    if len(chosen.texts) < 2:
        raise UserError(
            f"{path}: got one column of text, {chosen.texts[0]!r}, of {', '.join(table.columns)}; "
            "expected two; choose the second with --text_pair COLUMN"
        )
    return SequenceExamples(
        files.read_texts(table, chosen),
        labels.to_scores(table.columns[chosen.label], table.locations),
        [str(row) for row in range(len(table.locations))],
    )


def similarities(
    embedder: TextEmbedder, examples: SequenceExamples, prompt: str = ""
) -> Float64[np.ndarray, " n"]:
    """Computes the similarity of each pair; sentences of several pairs are embedded once.

    Args:
      embedder: The encoder; the similarity is the dot product of its vectors, which have unit
        length if the model compares by cosines.
      examples: Pairs of sentences.
      prompt: Put before every sentence.
    """
    first, second = examples.texts
    sentences = list(dict.fromkeys([*first, *second]))
    groups = list(embedder.embed(sentences, total=len(sentences), prompt=prompt))
    rows = np.concatenate(groups).astype(np.float64)
    vectors = dict(zip(sentences, rows, strict=True))
    return np.array([vectors[a] @ vectors[b] for a, b in zip(first, second, strict=True)])


def correlations(
    similarities: Float64[np.ndarray, " n"], scores: Num[np.ndarray, " n"], name: str
) -> dict[str, float]:
    """Returns `pearson_NAME` and `spearman_NAME`, the second being the usual measure.

    Reimers and Gurevych 2019, section 4.1, report Spearman's rank correlation, since a cosine need
    not be linear in the similarity.

    Args:
      similarities: Of the embeddings of each pair.
      scores: Human scores of the pairs.
      name: `cosine` or `dot`, the similarity of the model.
    """
    return {
        f"pearson_{name}": classification.pearson(similarities, scores),
        f"spearman_{name}": classification.spearman(similarities, scores),
    }
