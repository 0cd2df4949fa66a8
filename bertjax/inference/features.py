"""Extract features of tokens or whole texts from a trained encoder, and write them to a file.

open_run  run -> Encoding: the encoder with its tokenizer
extract   Encoding, texts -> chunks and their features, with the memory of one chunk
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Float32

from bertjax import build, pretrained
from bertjax.data.pipeline import prefetch_items
from bertjax.errors import UserError
from bertjax.inference.feature_files import Chunk, Reader
from bertjax.interfaces import Batch, Tokenizer
from bertjax.runs import examples
from bertjax.tasks.batches import PairBatches
from bertjax.train import sharding

POOLS = ("none", "mean", "cls")

_LONGEST = 512
"""For models without a longest sequence of their own."""

_SHORTEST = 16


@dataclasses.dataclass(frozen=True)
class Encoding:
    """An encoder that is ready to read.

    Attributes:
      tokenizer: Its own.
      reader: Makes sequences of texts.
      layers: Which layers are given: 0 is what the first layer reads.
      pool: One of POOLS.
      mesh: The devices.
      forward: A batch, with the places of its texts, to features; compiled.
    """

    tokenizer: Tokenizer
    reader: Reader
    layers: list[int]
    pool: str
    mesh: Mesh
    forward: Callable[[Batch], jax.Array]


def open_run(
    init: str,
    *,
    layers: str = "-1",
    pool: str = "none",
    max_seq_length: int = 0,
    truncate: bool = False,
    precision: str = "",
) -> Encoding:
    """Opens a run to extract features.

    Args:
      init: See `transfer.find`.
      layers: Numbers with commas between them, or all; negative ones count from the last, which is
        -1.
      pool: One of POOLS: a row for each token, or one for each text.
      max_seq_length: 0 for as many as the model reads, or 512.
      truncate: Whether longer texts lose their ends, instead of being refused.
      precision: As `config.model.precision`; empty: the run's.

    Raises:
      UserError: something is missing or does not fit.
    """
    run = pretrained.load(init)
    model, tokenizer = run.config.model, run.tokenizer
    chosen = _layers(layers, model["num_hidden_layers"])
    if pool == "cls" and tokenizer.cls_id is None:
        raise UserError(f"--pool cls: the tokenizer of {run.source.run} has no [CLS]; use mean")
    reader = Reader(
        tokenizer=tokenizer,
        max_seq_length=_length(max_seq_length, model),
        truncate=truncate,
        cls_last=build.cls_last(model),
        max_chars_per_word=examples.max_chars_per_word(model),
    )
    mesh = sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "sequence": 1})
    forward = _compiled(run, precision, chosen, pool, mesh)
    return Encoding(tokenizer, reader, chosen, pool, mesh, forward)


def extract(
    encoding: Encoding, texts: Iterable[str], source: str, *, batch_size: int = 64
) -> Iterator[tuple[Chunk, Float32[np.ndarray, "rows K D"]]]:
    """Chunks of texts, in order, with a row of features for each token or for each text.

    While one is used, the next one is computed, and that behind it tokenized.

    Args:
      encoding: See `open_run`.
      texts: One after the other.
      source: Names the texts in errors.
      batch_size: Texts that the model reads at a time, of about the same length.
    """
    batch_size = -(-batch_size // encoding.mesh.size) * encoding.mesh.size
    chunks = prefetch_items(encoding.reader.chunks(texts, source))
    return prefetch_items((chunk, _features(encoding, chunk, batch_size)) for chunk in chunks)


def _features(encoding: Encoding, chunk: Chunk, batch_size: int) -> Float32[np.ndarray, "r K D"]:
    lengths = _padded_lengths(encoding.reader.max_seq_length)
    batches = PairBatches(chunk.pairs, None, batch_size, lengths)
    rows = sharding.local_rows(batch_size, encoding.mesh)
    found: np.ndarray | None = None
    size = len(chunk.ids) if encoding.pool == "none" else len(chunk.counts)
    in_flight: collections.deque = collections.deque()

    def take() -> None:
        nonlocal found
        numbers, device = in_flight.popleft()
        values = np.asarray(device)
        if found is None:
            found = np.empty((size, *values.shape[-2:]), np.float32)
        _put(found, values, numbers, chunk, encoding.pool)

    for numbers, batch in batches.evaluation_batches(rows):
        batch = dict(batch) | _places(chunk, batch["example_id"])
        in_flight.append((numbers, encoding.forward(sharding.to_global(batch, encoding.mesh))))
        # Read one batch late, the device works while the next one is built.
        if len(in_flight) > 1:
            take()
    while in_flight:
        take()
    return found


def _places(chunk: Chunk, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Where in its sequence each text begins and ends, and where its [CLS] is."""
    begin = np.full(len(rows), chunk.begin, np.int32)
    end = begin + chunk.counts[rows].astype(np.int32)
    return {"text_begin": begin, "text_end": end, "cls_at": chunk.cls[rows].astype(np.int32)}


def _put(
    found: np.ndarray, values: np.ndarray, numbers: np.ndarray, chunk: Chunk, pool: str
) -> None:
    real = np.flatnonzero(numbers >= 0)
    if pool != "none":
        found[numbers[real]] = values[real]
        return
    starts, counts = chunk.starts[numbers[real]], chunk.counts[numbers[real]]
    for row, start, count in zip(real, starts, counts, strict=True):
        found[start : start + count] = values[row, chunk.begin : chunk.begin + count]


def _compiled(
    run: pretrained.Pretrained,
    precision: str,
    layers: list[int],
    pool: str,
    mesh: Mesh,
) -> Callable[[Batch], jax.Array]:
    """The forward pass as far as features, on the devices."""
    last = run.config.model.num_hidden_layers
    every = {"output_hidden_states": True} if set(layers) != {last} else {}
    encoder = run.encoder(precision, **every)
    whole = NamedSharding(mesh, PartitionSpec())
    params = jax.device_put(run.params("encoder")["encoder"], whole)

    def forward(params: Any, batch: Batch) -> Array:
        encoded = encoder.apply({"params": params}, batch, train=False)
        # The last layer is what tasks read: with a final LayerNorm, where the model has one.
        chosen = [
            encoded.sequence if layer == last else encoded.hidden_states[layer] for layer in layers
        ]
        return _pooled(jnp.stack(chosen, axis=2).astype(jnp.float32), batch, pool)

    compiled = jax.jit(sharding.on_mesh(forward, mesh, sharding.RULES), out_shardings=whole)
    return lambda batch: compiled(params, batch)


def _pooled(hidden: Float[Array, "B L K D"], batch: Batch, pool: str) -> Array:
    if pool == "none":
        return hidden
    if pool == "cls":
        return jax.vmap(lambda row, at: row[at])(hidden, batch["cls_at"])
    at = jnp.arange(hidden.shape[1])
    own = (at >= batch["text_begin"][:, None]) & (at < batch["text_end"][:, None])
    total = jnp.where(own[..., None, None], hidden, 0).sum(axis=1)
    return total / jnp.maximum(own.sum(axis=1), 1)[:, None, None]


def _layers(named: str, last: int) -> list[int]:
    """The layers that the user names, counted from 0.

    Raises:
      UserError: there is no such layer.
    """
    if named == "all":
        return list(range(last + 1))
    try:
        numbers = [int(word) for word in named.split(",")]
    except ValueError:
        raise UserError(f"--layers {named}: expected numbers as in -1 or 0,6,12, or all") from None
    for number in numbers:
        if not -last - 1 <= number <= last:
            raise UserError(
                f"--layers {named}: the model has layers 0 (what the first one reads) to {last}, "
                f"or {-last - 1} to -1"
            )
    return [number % (last + 1) for number in numbers]


def _length(asked: int, model: Mapping[str, Any]) -> int:
    max_length = build.positions(model)
    if asked > max_length:
        raise UserError(f"--max_seq_length {asked}: the model reads at most {max_length} tokens")
    return asked or int(min(max_length, _LONGEST))


def _padded_lengths(max_length: int) -> tuple[int, ...]:
    """Powers of two and what lies halfway between them: each is compiled once."""
    lengths, length = [], _SHORTEST
    while length < max_length:
        lengths += [length, length * 3 // 2]
        length *= 2
    return (*(length for length in lengths if length < max_length), max_length)
