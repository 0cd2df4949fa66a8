"""Continued pretraining: start a run from the parameters of another model.

with_model      config, model -> config with the fields and the tokenizer of the model
Initialization  copied, converted and new parameters; converts them for the first state

The encoder is initialised from the other model, and so is every objective that both runs have.
Arrays may differ in three ways: in the vocabulary (other or more pieces), in the number of
positions, and in the number of layers. The config decides how a generator shares embeddings.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import PyTree
from ml_collections import ConfigDict

from bertjax import build, catalog
from bertjax import config as configs
from bertjax.constraints import with_defaults
from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.interfaces import Tokenizer
from bertjax.overrides import Override, apply_overrides
from bertjax.pretrained import tokenizer_folder
from bertjax.tokenizers.tokenizer import load as load_tokenizer
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import origin as checkpoint_origin
from bertjax.train.checkpoint import restore, trees
from bertjax.train.optimizer import DEPTH_WEIGHTS, leading_axes
from bertjax.train.state import TrainState
from bertjax.train.trainer import Trainer

_OF_TRAINING = ("precision", "remat", "unroll", "attention_kernel", "embedding_sharing")
"""Fields of a model that do not define its function: those of the new config are kept."""

_POSITIONS = "encoder/position_embeddings/embedding"
"""Of the encoder, and with a prefix of the encoder of a generator."""
_INSIDE_WORD = "##"  # begins WordPiece's pieces that do not begin a word
_MAX_SHOWN = 5

Conversion = Callable[[np.ndarray], np.ndarray]


def with_model(
    config: ConfigDict, init: str, overrides: Sequence[Override] = (), *, optimizer: bool = False
) -> ConfigDict:
    """The config of a run that starts from a model: its fields and, by default, its tokenizer.

    Args:
      config: A pretraining config, of which `config.model` is replaced.
      init: The model; see `run_cache.resolve`.
      overrides: Changes of `config.model` as (dotted field, text): other dropout, more positions,
        another number of layers.
      optimizer: Whether the state of the optimizer is loaded too.

    Raises:
      UserError: there is no such model, it is untrained, or an override is invalid.
    """
    source = run_cache.resolve(init)
    if source.checkpoint is None:
        raise UserError(f"--init {init}: got untrained parameters, expected a trained model")
    made = configs.from_json(configs.to_json(config))
    model = dict(source.config["model"])
    known = build.model_fields(model)
    with made.unlocked():
        model |= {n: made.model[n] for n in _OF_TRAINING if n in known and n in made.model}
        made.model = ConfigDict(model)
        made.init = ConfigDict({"model": init, **source.description(), "optimizer": optimizer})
        if "tokenizer" in made and not made.tokenizer.path:
            made.tokenizer.path = str(tokenizer_folder(source))
            if spare := _spare_rows(source.config):
                made.init.spare_rows = spare
        elif "tokenizer" in made:
            size = load_tokenizer(made.tokenizer.path).vocab_size
            made.model.vocab_size = size + build.extra_ids(made)
    apply_overrides(made, overrides)
    own, given = model["name"], made.model.name
    if given != own:
        raise UserError(f"config.model.name: got {given!r}, expected {own!r}, as in --init {init}")
    return configs.from_json(configs.to_json(made))


def _spare_rows(source: Mapping[str, Any]) -> int:
    """Embeddings of a released model without a token, which its continuation keeps."""
    return source.get("imported", source.get("init", {})).get("spare_rows", 0)


@dataclasses.dataclass(frozen=True)
class Initialization:
    """The parameters of a source and how they become those of a new run.

    Attributes:
      checkpoint: The checkpoint that is read.
      copied: Top-level parts that are loaded, "encoder" first.
      sources: Names of the arrays of the source by the name of the array that is their sum.
      fresh: Parts and arrays that the source does not have, or not for as many layers.
      conversions: Functions by array name, for arrays that are not copied unchanged.
      notes: A line of text for each kind of conversion.
      optimizer: Whether the optimizer's state is loaded.
    """

    checkpoint: pathlib.Path
    copied: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]
    fresh: tuple[str, ...]
    conversions: Mapping[str, Conversion]
    notes: tuple[str, ...]
    optimizer: bool

    def create_state(self, trainer: Trainer) -> TrainState:
        """The initial state: that of the trainer with the parameters of the source.

        If the source has an average of its weights, the average is loaded, unless the state of the
        optimizer, which belongs to the last weights, is loaded too.
        """
        state = trainer.create_state()
        prefix = "params" if self.optimizer else restore.evaluation_prefix(self.checkpoint)
        loaded: dict[str, np.ndarray] = {}
        for part in self.copied:
            loaded |= _load_named(self.checkpoint, f"{prefix}/{part}", part)
        found = {
            name: self._convert(name, functools.reduce(np.add, map(loaded.get, summands)))
            for name, summands in self.sources.items()
        }
        state = state.with_params(_replace(state.params, found))
        if self.optimizer:
            arrays = _load_named(self.checkpoint, "opt_state", "")
            state = state.replace(opt_state=_replace(state.opt_state, arrays))
        return state

    def _convert(self, name: str, array: np.ndarray) -> np.ndarray:
        return self.conversions.get(name, lambda same: same)(array)

    def description(self) -> str:
        """Lines for the user: the parts that are loaded from the source, and their conversions."""
        lines = [f"init        {self.checkpoint}: {', '.join(self.copied)}"]
        lines += [f"            new: {', '.join(self.fresh)}"] if self.fresh else []
        lines += [f"            {note}" for note in self.notes]
        lines += ["            with the state of the optimizer"] if self.optimizer else []
        return "\n".join(lines)


def find(config: ConfigDict, tokenizer: Tokenizer | None, trainer: Trainer) -> Initialization:
    """Compares a run with the source in `config.init`; reads no arrays.

    Raises:
      UserError: the source is missing or another one than when the run started, or arrays of it
        cannot be converted.
    """
    source = run_cache.resolve(config.init.model)
    record = checkpoint_folder.read_record(source.checkpoint)
    stored = {
        name.removeprefix("params/"): tuple(array["shape"])
        for name, array in record.arrays.items()
        if name.startswith("params/")
    }
    shapes = {n: tuple(s.shape) for n, s in trees.flatten_names(trainer.shapes.params).items()}
    before, now = ({name.partition("/")[0] for name in names} for names in (stored, shapes))
    copied = ("encoder", *sorted((before & now) - {"encoder"}))
    fresh = [f"params/{part}" for part in sorted(now - before)]
    converter = _Converter(config, source, tokenizer)
    axes = trees.flatten_names(trainer.logical_axes)
    sums = getattr(catalog.load("models", config.model.name).Model, "array_sums", {})
    sources, conversions = {}, {}
    for name, shape in shapes.items():
        part = name.partition("/")[0]
        if part in copied:
            summands = (name,) if name in stored else sums.get(name, ())
            old = stored.get(summands[0]) if summands else None
            of_depth = name.endswith(DEPTH_WEIGHTS)  # of all layers below: new for other layers
            if old is None or (of_depth and old != shape):
                fresh.append(name)
                continue
            sources[name] = summands
            if old != shape or converter.has_other_pieces:
                found = converter.find(name, old, shape, axes[name])
                conversions |= {name: found} if found else {}
    if config.init.optimizer:
        _check_optimizer(record.arrays, trees.flatten_names(trainer.shapes), conversions, fresh)
    return Initialization(
        source.checkpoint,
        copied,
        sources,
        tuple(name.removeprefix("params/") for name in fresh),
        conversions,
        tuple(converter.notes),
        config.init.optimizer,
    )


class _Converter:
    """Finds the conversion of each array that differs, and describes it in `notes`."""

    def __init__(
        self,
        config: ConfigDict,
        source: checkpoint_origin.PretrainedSource,
        tokenizer: Tokenizer | None,
    ):
        module = type(build.encoder(config.model))
        self._old = with_defaults(module, source.config["model"])
        self._new = with_defaults(module, config.model)
        self._tokenizer = tokenizer
        self._source = source
        self.notes: dict[str, None] = {}

    @functools.cached_property
    def _old_tokenizer(self) -> Tokenizer:
        return load_tokenizer(tokenizer_folder(self._source))

    @functools.cached_property
    def has_other_pieces(self) -> bool:
        """Whether the vocabularies differ."""
        if self._tokenizer is None:
            return False
        return self._tokenizer.fingerprint != self._old_tokenizer.fingerprint

    @functools.cached_property
    def _pieces(self) -> list[list[int]]:
        pieces = match_pieces(self._tokenizer, self._old_tokenizer)
        extra = self._new["vocab_size"] - len(pieces)
        old = range(self._old_tokenizer.vocab_size, self._old["vocab_size"])
        pieces += [[number] for number in old][:extra]
        pieces += [[]] * (self._new["vocab_size"] - len(pieces))
        new = sum(len(ids) != 1 for ids in pieces)
        self.notes[
            f"vocabulary: {len(pieces) - new:,} of {len(pieces):,} pieces kept, {new:,} new ones "
            "are means of the pieces they consist of"
        ] = None
        return pieces

    def find(
        self, name: str, stored: tuple[int, ...], shape: tuple[int, ...], axes: Sequence[str | None]
    ) -> Conversion | None:
        """The conversion of an array; None to copy it.

        Args:
          name: Its path.
          stored: Its shape in the source.
          shape: Its shape in the run.
          axes: The logical names of its axes; () if they have none.

        Raises:
          UserError: the shapes differ in another way.
        """
        sizes = [(a, b) for a, b in zip(stored, shape, strict=False) if a != b]
        vocabulary = self._old.get("vocab_size"), self._new.get("vocab_size")
        axis = axes.index("vocab") if "vocab" in axes else None
        is_vocabulary = axis is not None and stored[axis] == vocabulary[0]
        changes = sizes == [vocabulary] or (self.has_other_pieces and not sizes)
        if self._tokenizer is not None and is_vocabulary and changes:
            return functools.partial(average_rows, self._pieces, axis=axis)
        if not sizes and len(stored) == len(shape):
            return None
        is_positions = f"/{name}".endswith(f"/{_POSITIONS}")
        if is_positions and len(sizes) == 1 and stored[1] == shape[1]:
            offset = self._new.get("position_offset", 0)
            self.notes[f"positions: {stored[0]:,} became {shape[0]:,}, repeated in order"] = None
            return functools.partial(repeat_positions, length=shape[0], offset=offset)
        if leading_axes(name.split("/")) == 1 and len(sizes) == 1 and stored[1:] == shape[1:]:
            layers = choose_layers(
                stored[0], shape[0], self._new.get("global_attn_every_n_layers", 1)
            )
            self.notes[f"layers: {', '.join(map(str, layers))} of {stored[0]}"] = None
            return lambda array: array[np.array(layers)]
        raise UserError(
            f"--init {self._source.run}: {name} has shape {list(stored)}, expected {list(shape)}; "
            "only the vocabulary, the positions and the number of layers may differ; set the other "
            "fields of config.model to the values of that model"
        )


def _check_optimizer(
    stored: Mapping[str, Any],
    arrays: Mapping[str, Any],
    conversions: Mapping[str, Conversion],
    fresh: Sequence[str],
) -> None:
    """Checks that the optimizer's state fits: the same optimizer and the same parameters."""
    state = {name: list(array.shape) for name, array in arrays.items() if _is_optimizer(name)}
    found = {name: array["shape"] for name, array in stored.items() if _is_optimizer(name)}
    if conversions or fresh or state != found:
        differing = [n for n in {**state, **found} if state.get(n) != found.get(n)]
        shown = ", ".join([*differing, *conversions, *fresh][:_MAX_SHOWN])
        raise UserError(
            "--init_optimizer: got a model with other parameters or another optimizer, expected "
            f"the same ones ({shown} differ); leave the option out"
        )


def _is_optimizer(name: str) -> bool:
    return name.startswith("opt_state/")


def _load_named(checkpoint: pathlib.Path, prefix: str, part: str) -> dict[str, np.ndarray]:
    arrays = trees.flatten_names(restore.load_numpy(checkpoint, prefix))
    return {f"{part}/{name}".lstrip("/"): array for name, array in arrays.items()}


def _replace(tree: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """A tree with other arrays at some names, on the devices of those that they replace."""
    leaves = trees.flatten_names(tree)
    placed = {
        name: checkpoint_origin.place_array(array, leaves[name].sharding)
        for name, array in arrays.items()
    }
    return trees.unflatten_like(tree, leaves | placed)


def match_pieces(new: Tokenizer, old: Tokenizer) -> list[list[int]]:
    """Maps each id of a tokenizer to ids of another: of the same piece, or of its parts.

    Special tokens are matched by their roles. A piece without a counterpart, such as one of unknown
    characters, has no ids.
    """
    pieces = old.ids_to_pieces(range(old.vocab_size))
    numbers = {piece: number for number, piece in enumerate(pieces)}
    roles = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
    special = {getattr(new, role): getattr(old, role) for role in roles}
    matched: list[list[int]] = []
    missing: list[int] = []
    for number, piece in enumerate(new.ids_to_pieces(range(new.vocab_size))):
        known = special.get(number)
        known = numbers.get(piece) if known is None else known
        matched.append([] if known is None else [known])
        if known is None:
            missing.append(number)
    texts = [new.decode([number]) for number in missing]
    parts = old.encode_batch([text.removeprefix(_INSIDE_WORD) for text in texts])
    for number, text, ids in zip(missing, texts, parts, strict=True):
        if text.startswith(_INSIDE_WORD) and old.kind == new.kind == "wordpiece":
            ids = _longest_pieces(text, numbers)
        matched[number] = [] if old.unk_id in ids else ids
    return matched


def _longest_pieces(piece: str, numbers: Mapping[str, int]) -> list[int]:
    """Divides a piece inside a word as WordPiece does: the longest piece first; [] if none fits."""
    rest, ids = piece.removeprefix(_INSIDE_WORD), []
    while rest:
        fitting = (
            size for size in range(len(rest), 0, -1) if _INSIDE_WORD + rest[:size] in numbers
        )
        if (size := next(fitting, 0)) == 0:
            return []
        ids.append(numbers[_INSIDE_WORD + rest[:size]])
        rest = rest[size:]
    return ids


def average_rows(pieces: Sequence[Sequence[int]], array: np.ndarray, *, axis: int) -> np.ndarray:
    """The rows of a new vocabulary: means of the rows of old ids; of all rows for no ids.

    Args:
      pieces: For each new id the old ids.
      array: An array with an axis of the old vocabulary.
      axis: That axis.
    """
    rows = np.moveaxis(array, axis, 0)
    mean = rows.mean(axis=0)
    new = [rows[ids[0]] if len(ids) == 1 else rows[ids].mean(0) if ids else mean for ids in pieces]
    return np.moveaxis(np.stack(new).astype(array.dtype), 0, axis)


def repeat_positions(table: np.ndarray, *, length: int, offset: int) -> np.ndarray:
    """A table of more or fewer positions: the old ones, repeated (Beltagy et al. 2020, section 5).

    Args:
      table: Embeddings [old length, E].
      length: New number of rows.
      offset: Number of rows at the beginning that are not positions.
    """
    positions = np.arange(length - offset) % (len(table) - offset) + offset
    return np.concatenate([table[:offset], table[positions]])


def choose_layers(old: int, new: int, period: int = 1) -> list[int]:
    """The source of each layer of a deeper or shallower stack.

    A deeper stack repeats the layers in order (Gong et al. 2019, stacking), a shallower one has
    layers at equal distances, the first among them (Sanh et al. 2019, section 3).

    Args:
      old: Number of layers of the source.
      new: Number of layers of the new stack.
      period: Period with which kinds of layers alternate; the source of a layer has its kind.
    """
    if new > old:
        whole = old - old % period or old
        return [layer % whole for layer in range(new)]
    spread = [layer * old // new for layer in range(new)]
    return [
        min(range(layer % period, old, period), key=lambda near, at=at: (abs(near - at), near))
        for layer, at in enumerate(spread)
    ]
