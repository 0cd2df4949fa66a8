"""Extract features of tokens or texts: hidden states of a trained encoder.

load      run -> FeatureExtractor: the encoder with its tokenizer
extract   FeatureExtractor, texts -> chunks and their features, in the memory of a few chunks
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int

from bertjax import build, pretrained
from bertjax.data.pipeline import prefetch_items
from bertjax.errors import UserError
from bertjax.huggingface.sentence_transformers import DEFAULT_LENGTH
from bertjax.inference import packed_texts
from bertjax.inference.feature_files import Chunk, TextReader
from bertjax.interfaces import Batch, Tokenizer
from bertjax.layers import packed_rows
from bertjax.layers.text_embeddings import pool, unit_vectors
from bertjax.runs import examples
from bertjax.tasks.batches import PairBatches
from bertjax.tasks.sequences import Pairs
from bertjax.train import sharding

_MIN_LENGTH = 8
"""The smallest padded length, and the smallest difference of two."""
_LENGTHS_PER_OCTAVE = 4
"""Number of padded lengths from one power of two to the next: compile time against padding."""
_CPU_BATCH_VALUES = 2**19
"""Tokens of a batch on CPUs times the width of the model: the activations of more do not stay in
the processor's cache, and MiniLM takes 1.2 to 1.3 times as long for a token."""
_POOLED_TEXTS_PER_CHUNK = 4096
"""Texts among which those of a batch are chosen by length, if each has one vector."""


@dataclasses.dataclass(frozen=True)
class FeatureExtractor:
    """Trained encoder, compiled for feature extraction.

    Attributes:
      tokenizer: Tokenizer of the run.
      reader: Encodes texts to sequences.
      layers: Extracted layers; 0 is the input of the first layer.
      pooling: See `load`.
      mesh: The devices.
      forward: Compiled; from a batch to features.
      packs: Whether texts share rows.
      max_tokens: Maximum number of tokens of a batch of such rows; 0 for no limit.
    """

    tokenizer: Tokenizer
    reader: TextReader
    layers: list[int]
    pooling: str
    mesh: Mesh
    forward: Callable[[Batch], jax.Array]
    packs: bool = False
    max_tokens: int = 0


def load(
    init: str | pretrained.Pretrained,
    *,
    layers: str = "-1",
    pooling: str = "none",
    normalize: bool = False,
    dim: int = 0,
    max_seq_length: int = 0,
    truncate: bool = False,
    precision: str = "",
) -> FeatureExtractor:
    """Loads an encoder for feature extraction from a run.

    Args:
      init: RUN, RUN@STEP or RUN@best, or a loaded model; see `pretrained.load`.
      layers: Comma-separated layers, or `all`; 0 is the input of the first layer, -1 the last
        layer.
      pooling: `none` for a row per token, or one of `layers/text_embeddings.py` for a row per text.
      normalize: Whether the features of each token or text are scaled to unit length.
      dim: Number of the first values of each vector that are kept; 0 for all.
      max_seq_length: Maximum number of tokens of a sequence; 0 for the model's maximum, or 512.
      truncate: Whether longer texts are truncated, instead of an error.
      precision: As `config.model.precision`; empty for that of the run.

    Raises:
      UserError: there is no such run or layer, the sequence is longer than the model's positions,
        `dim` exceeds the width, or `pooling` is cls and the tokenizer has no [CLS].
    """
    run = pretrained.load(init)
    model, tokenizer = run.config.model, run.tokenizer
    if dim > model.hidden_size:
        raise UserError(f"dim: got {dim}, expected at most {model.hidden_size}, the model's width")
    indices = _parse_layers(layers, build.num_hidden_layers(model))
    if pooling == "cls" and tokenizer.cls_id is None:
        raise UserError(f"pooling cls: the tokenizer of {run.source.run} has no [CLS]; use mean")
    reader = TextReader(
        tokenizer=tokenizer,
        max_seq_length=_sequence_length(max_seq_length, model),
        truncate=truncate,
        cls_last=build.cls_last(model),
        max_chars_per_word=examples.max_chars_per_word(model),
    )
    if pooling != "none":
        reader = dataclasses.replace(
            reader, texts_per_chunk=_POOLED_TEXTS_PER_CHUNK, reads_spans=False
        )
    mesh = sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "sequence": 1})
    on_cpu = jax.default_backend() == "cpu"
    forward = _compile(run, precision, indices, pooling, mesh, normalize=normalize, dim=dim)
    return FeatureExtractor(
        tokenizer,
        reader,
        indices,
        pooling,
        mesh,
        forward,
        packs=build.supports_packing(model),
        max_tokens=_CPU_BATCH_VALUES // model.hidden_size if on_cpu else 0,
    )


def extract(
    extractor: FeatureExtractor,
    texts: Iterable[str],
    source: str,
    *,
    batch_size: int = 64,
    first: int = 0,
) -> Iterator[tuple[Chunk, Float32[np.ndarray, "rows K D"]]]:
    """Yields chunks of texts in order, with features of each token or each text.

    The next chunk is computed, and the one after it tokenized, on background threads.

    Args:
      extractor: The encoder; see `load`.
      texts: Texts.
      source: Name of the texts in errors.
      batch_size: Maximum number of rows per batch: of texts of similar length, or, if the model
        supports that, of rows that short texts share.
      first: Number of the first text in the source.

    Yields:
      A chunk, and features of its K layers.

    Raises:
      UserError: a text is too long.
    """
    batch_size = -(-batch_size // extractor.mesh.size) * extractor.mesh.size
    chunks = prefetch_items(extractor.reader.read_chunks(texts, source, first))
    return prefetch_items((chunk, _run(extractor, chunk, batch_size)) for chunk in chunks)


def _run(
    extractor: FeatureExtractor, chunk: Chunk, batch_size: int
) -> Float32[np.ndarray, "rows K D"]:
    features: np.ndarray | None = None
    size = len(chunk.ids) if extractor.pooling == "none" else len(chunk.counts)
    in_flight: collections.deque = collections.deque()

    def fetch() -> None:
        nonlocal features
        indices, device = in_flight.popleft()
        values = np.asarray(device)
        if features is None:
            features = np.empty((size, *values.shape[-2:]), np.float32)
        _scatter(features, values, indices, chunk, extractor.pooling)

    for indices, batch in _batches(extractor, chunk.pairs, batch_size):
        in_flight.append((indices, extractor.forward(sharding.to_global(batch, extractor.mesh))))
        # Fetched one batch late, so that the device computes while the next batch is built.
        if len(in_flight) > 1:
            fetch()
    while in_flight:
        fetch()
    return features


def _batches(
    extractor: FeatureExtractor, pairs: Pairs, batch_size: int
) -> Iterator[tuple[Int[np.ndarray, " B"], Batch]]:
    """Yields (text numbers or PADDING, batch): every text once."""
    max_length, mesh = extractor.reader.max_seq_length, extractor.mesh
    if extractor.packs:
        return packed_texts.batches(
            pairs,
            max_length,
            max_rows=batch_size,
            max_tokens=extractor.max_tokens,
            num_groups=mesh.size,
            local_rows=functools.partial(sharding.local_rows, mesh=mesh),
        )
    batches = PairBatches(pairs, None, batch_size, _padded_lengths(max_length))
    return batches.evaluation_batches(sharding.local_rows(batch_size, mesh))


def _scatter(
    features: np.ndarray, values: np.ndarray, indices: np.ndarray, chunk: Chunk, pooling: str
) -> None:
    """Writes the values of a batch, whose padding has index -1, to the features of a chunk."""
    real = np.flatnonzero(indices >= 0)
    if pooling != "none":
        features[indices[real]] = values[real]
        return
    starts, counts = chunk.starts[indices[real]], chunk.counts[indices[real]]
    for row, start, count in zip(real, starts, counts, strict=True):
        text = slice(chunk.text_start, chunk.text_start + count)
        features[start : start + count] = values[row, text]


def _compile(
    run: pretrained.Pretrained,
    precision: str,
    layers: list[int],
    pooling: str,
    mesh: Mesh,
    *,
    normalize: bool,
    dim: int,
) -> Callable[[Batch], jax.Array]:
    """Compiles the forward pass to features, with parameters replicated over the devices."""
    last = build.num_hidden_layers(run.config.model)
    fields = {"output_hidden_states": True} if set(layers) != {last} else {}
    encoder = run.forward_encoder(precision, **fields)
    replicated = NamedSharding(mesh, PartitionSpec())
    params = jax.device_put(run.load_params("encoder")["encoder"], replicated)
    pool_layer = functools.partial(pool, pooling=pooling, cls_last=build.cls_last(run.config.model))
    pool_layers = jax.vmap(pool_layer, in_axes=(2, None), out_axes=1)

    def forward(params: Any, batch: Batch) -> Array:
        encoded = packed_rows.encode(encoder, params, batch, mesh.size)
        # `sequence` includes the final LayerNorm of pre-norm models, `hidden_states` does not.
        hidden = [
            encoded.sequence if layer == last else encoded.hidden_states[layer] for layer in layers
        ]
        features = jnp.stack(hidden, axis=2).astype(jnp.float32)
        if pooling != "none":
            features = pool_layers(features, batch["attention_mask"])
        features = features[..., : dim or None]
        return unit_vectors(features) if normalize else features

    compiled = jax.jit(sharding.on_mesh(forward, mesh, sharding.RULES), out_shardings=replicated)
    return lambda batch: compiled(params, batch)


def _parse_layers(layers: str, last: int) -> list[int]:
    """Parses comma-separated layers, or `all`, to indices from 0 to `last`.

    Raises:
      UserError: there is no such layer.
    """
    if layers == "all":
        return list(range(last + 1))
    try:
        numbers = [int(word) for word in layers.split(",")]
    except ValueError:
        raise UserError(
            f"layers: got {layers}, expected integers such as -1 or 0,6,12, or all"
        ) from None
    for number in numbers:
        if not -last - 1 <= number <= last:
            raise UserError(
                f"layers: got {layers}, expected 0 (the input of the first layer) to {last}, or "
                f"{-last - 1} to -1"
            )
    return [number % (last + 1) for number in numbers]


def _sequence_length(max_seq_length: int, model: Mapping[str, Any]) -> int:
    max_length = build.positions(model)
    if max_seq_length > max_length:
        raise UserError(
            f"max_length: got {max_seq_length}, expected at most {max_length}, the model's "
            "positions"
        )
    return max_seq_length or int(min(max_length, DEFAULT_LENGTH))


def _padded_lengths(max_length: int) -> tuple[int, ...]:
    """Returns the compiled lengths: multiples of 8, from 32 on at most a quarter apart."""
    lengths, length = [], _MIN_LENGTH
    while length < max_length:
        lengths.append(length)
        octave = 1 << (length.bit_length() - 1)
        length += max(_MIN_LENGTH, octave // _LENGTHS_PER_OCTAVE)
    return (*lengths, max_length)
