"""Keep the scores of texts in a file while others are computed, to resume after an interruption."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bertjax import pretrained
from bertjax.io.unfinished import parts_folder

_FILE = "scores.jsonl"


class ScoreLog:
    """File of scores, with a line of numbers and scores for each group of texts.

    Args:
      path: The file, which is read if it exists; an incomplete last line is removed.

    Attributes:
      scores: The scores in the file, by the number of their text.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self.scores: dict[int, float] = {}
        if path.exists():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            with path.open("r+b") as file:
                file.truncate(len(whole))
            for line in whole.splitlines():
                numbers, scores = json.loads(line)
                self.scores.update(zip(numbers, scores, strict=True))

    def add(self, numbers: Int[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> None:
        """Appends the scores of a group of texts."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([numbers.tolist(), scores.tolist()]) + "\n")


@contextlib.contextmanager
def open_log(
    output: str, run: pretrained.Pretrained, texts: Sequence[Any], **options: Any
) -> Iterator[ScoreLog | None]:
    """A context manager that yields the log of an output file, which is removed at the end.

    Args:
      output: The file; "" for no log.
      run: The model.
      texts: Everything that is scored, as values for JSON.
      **options: Options of the evaluation.

    Raises:
      UserError: there are scores with other settings, or another process writes the output.
    """
    if not output:
        yield None
        return
    settings = {
        **options,
        **run.identity(),
        "texts": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
    }
    with parts_folder(output, settings) as folder:
        yield ScoreLog(folder / _FILE)
