"""Answer requests for timings: the loop of the workers of compare_peers.py.

A request is a line of JSON: `peer`, `shape` (a `Shape`), `steps` and `warm_up_seconds`. The answer
is a line with `seconds`, of one step, and `parameters`. A step is one repetition of the task: a
training step, the embedding or generation of all texts, or a fine-tuning run. A peer is built at
its first request.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
    """A task, a model and its batch.

    Attributes:
      task: A key of TASKS in compare_peers.py.
      name: Name of the size.
      layers, width, heads: Of the encoder; the feed-forward nets are four times as wide.
      batch_size: Sequences of a batch, or all texts to embed.
      length: Tokens of a sequence, or of a prompt.
      predictions: Masked tokens of a sequence.
      new_tokens: Generated tokens of a sequence.
      num_steps: Training steps of a fine-tuning run.
      precision: "float32", or "bfloat16" for the operands of matmuls.
      vocab_size: V.
      dropout: Of hidden states and of attention weights.
    """

    task: str
    name: str
    layers: int
    width: int
    heads: int
    batch_size: int
    length: int = 128
    predictions: int = 20
    new_tokens: int = 0
    num_steps: int = 0
    precision: str = "float32"
    vocab_size: int = 30522
    dropout: float = 0.1


PRECISIONS = {"float32": "float32", "bfloat16": "bfloat16_operands"}
"""`config.model.precision` of bertjax for that of a shape."""
LEARNING_RATE, WEIGHT_DECAY, MAX_GRAD_NORM = 1e-4, 0.01, 1.0
"""AdamW of every peer, with gradients clipped to this norm."""

Step = Callable[[], None]
"""Takes a step and waits for its end."""


def random_batch(shape: Shape) -> dict[str, np.ndarray]:
    """Random `tokens` [B, L], and `positions` and `labels` of the masked ones [B, P]."""
    random = np.random.default_rng(0)
    rows, masked = range(shape.batch_size), shape.predictions
    return {
        "tokens": random.integers(5, shape.vocab_size, (len(rows), shape.length)),
        "positions": np.stack([random.permutation(shape.length)[:masked] for _ in rows]),
        "labels": random.integers(5, shape.vocab_size, (len(rows), masked)),
    }


def serve(
    builders: Mapping[str, Callable[[Shape], tuple[Step, int]]], *, warm_up: bool = True
) -> None:
    """Answers requests until the end of standard input.

    Args:
      builders: Peers by name: from a shape to the step and the number of parameters.
      warm_up: Whether to run steps for `warm_up_seconds` before the first timing, and one before
        each other, since the memory of idle processes may have been paged out.
    """
    # Output of libraries goes to standard error.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    built = {}
    for line in sys.stdin:
        request = json.loads(line)
        shape = Shape(**request["shape"])
        key = request["peer"], shape
        is_new = key not in built
        if is_new:
            built[key] = builders[request["peer"]](shape)
        step, parameters = built[key]
        if warm_up:
            ready = time.perf_counter() + (request["warm_up_seconds"] if is_new else 0)
            step()
            while time.perf_counter() < ready:
                step()
        start = time.perf_counter()
        for _ in range(request["steps"]):
            step()
        seconds = (time.perf_counter() - start) / request["steps"]
        replies.write(json.dumps({"seconds": seconds, "parameters": parameters}) + "\n")
        replies.flush()
