"""Examples that share rows in a fine-tuning: `config.data.packed_examples`, checks and description.

encode            config -> function that encodes training batches
check             raises if the run does not support it
describe_padding  config, training batches, mesh -> share of padding, and a suggestion
"""

import itertools
import math
from collections.abc import Callable

from jax.sharding import Mesh
from ml_collections import ConfigDict

from bertjax import build
from bertjax.errors import UserError
from bertjax.interfaces import extent
from bertjax.layers.packed_rows import PackedEncoding
from bertjax.pretrainer import Encoded
from bertjax.tasks.batches import ROW_COUNTS, PairBatches, TaskMixture

_SIZES = (64, 32, 16, 8)
"""Numbers of examples to suggest: larger groups fill rows better."""
_MUCH_PADDING = 0.5
_BATCHES = 20


def packed_examples(config: ConfigDict) -> int:
    """The number of examples that share rows; 0 for none."""
    return config.data.get("packed_examples") or 0


def encode(config: ConfigDict) -> Callable[..., Encoded]:
    """The function that applies a run's encoder to a training batch."""
    encode_rows, size = build.encode(config), packed_examples(config)
    return PackedEncoding(size, encode_rows) if size else encode_rows


def check(config: ConfigDict) -> None:
    """Raises if examples are to share rows, which the model or another option does not support.

    Raises:
      UserError: naming the model or the option.
    """
    if packed_examples(config) and (obstacle := _obstacle(config)):
        raise UserError(
            f"config.data.packed_examples is not supported with {obstacle}: set it to 0"
        )


def _obstacle(config: ConfigDict) -> str:
    """The part of the config that requires one row per example; "" if none does."""
    obstacles = {
        f"model {config.model.name}": not build.supports_packing(config.model),
        "config.data.knowledge": bool(config.data.get("knowledge")),
        "further objectives": bool(config.get("objectives")),
    }
    return next((name for name, applies in obstacles.items() if applies), "")


def describe_padding(config: ConfigDict, batches: PairBatches | TaskMixture, mesh: Mesh) -> str:
    """The share of padding of the first training batches, and how to reduce it if it is large."""
    tokens = positions = 0
    first = itertools.islice(batches.training_batches(), min(_BATCHES, batches.batches_per_epoch))
    for _, batch in first:
        tokens += int(batch["attention_mask"].sum())
        positions += math.prod(extent(batch))
    share = 1 - tokens / positions
    line = f"padding: {share:.0%} of the positions of training batches"
    parts = mesh.shape["data"] * mesh.shape["fsdp"] * config.data.microbatches
    fitting = [size for size in _SIZES if batches.batch_size % (parts * size) == 0]
    if config.data.max_seq_length % ROW_COUNTS:
        fitting = []
    if share < _MUCH_PADDING or packed_examples(config) or _obstacle(config) or not fitting:
        return line
    return f"{line}; --config.data.packed_examples={fitting[0]} lets examples share rows instead"
