"""Map array names and layouts between bertjax parameters and Hugging Face checkpoints.

In bertjax a kernel is [inputs, outputs] with attention heads on separate axes, and the blocks
of a stack share one array with a leading layer axis. A checkpoint has one array per layer, and the
weight of a torch.nn.Linear is [outputs, inputs]. An `ArrayMap` describes one array of a checkpoint
on both sides; an architecture is a list of them. Both directions are exact inverses.
"""

import collections
import dataclasses
import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.errors import UserError

Shape = tuple[int, ...]
Model = Mapping[str, Any]
"""The section `config.model` of a run: fields of the bertjax model."""

Layers = Callable[[Model], Any]
"""Gives the HF numbers of stacked layers, an array-like with the shape of the leading axes."""

LAYER, INNER = "{layer}", "{inner}"
"""Placeholders in an HF name: number of a layer, and number of a block within a group of layers.
The bertjax parameter has one leading axis for each of them, in this order."""

_MAX_ROWS = 20


class Layout(enum.Enum):
    """The axes of an array in a checkpoint, compared with the bertjax parameter of one layer."""

    SAME = "the same axes"
    VECTOR = "one axis"
    LINEAR = "[outputs, inputs], the weight of a torch.nn.Linear"
    LINEAR_HEADS = "[*outputs, *inputs]: LINEAR with heads on a separate axis"
    CONV1D = "[inputs, outputs], the weight of transformers' Conv1D"


_TRANSPOSED = (Layout.LINEAR, Layout.LINEAR_HEADS)

_OUTPUT_AXIS = {Layout.LINEAR: 0, Layout.CONV1D: 1, Layout.VECTOR: 0}
"""The axis along which a fused array holds several parameters."""


@dataclasses.dataclass(frozen=True)
class ArrayMap:
    """One array of a checkpoint (one per layer, if its name has `LAYER`) and its parameters.

    Attributes:
      bertjax: Path of the parameter, such as `encoder/pooler/dense/kernel`. Several paths stand for
        a fused array, the concatenation of these parameters along the outputs (query, key, value).
      hf: Name in the checkpoint, which may contain `LAYER`, or `LAYER` and `INNER`.
      layout: The axes of the array in the checkpoint.
      inputs: Number of kernel axes, after the layer axes, that a linear layer sums over.
      layers: HF numbers of the stacked layers, where these are not 0, 1, 2 and so on: every third
        one, or all but the first.
    """

    bertjax: str | tuple[str, ...]
    hf: str
    layout: Layout = Layout.SAME
    inputs: int = 0
    layers: Layers | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all parameters."""
        return (self.bertjax,) if isinstance(self.bertjax, str) else self.bertjax

    def is_in(self, names: Iterable[str]) -> bool:
        """Whether HF names contain the array, in any layer."""
        pattern = re.escape(self.hf)
        for mark in (LAYER, INNER):
            pattern = pattern.replace(re.escape(mark), r"\d+")
        return any(re.fullmatch(pattern, name) for name in names)

    def hf_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        """The HF names and shapes of the array in all layers, for parameters of these shapes."""
        lead = len(self._lead(shapes, model))
        pieces = [self._hf_shape(shapes[path][lead:]) for path in self.paths]
        shape = pieces[0]
        if len(pieces) > 1:
            axis = _OUTPUT_AXIS[self.layout]
            outputs = sum(piece[axis] for piece in pieces)
            shape = (*shape[:axis], outputs, *shape[axis + 1 :])
        return dict.fromkeys(self._names(shapes, model), shape)

    def bertjax_shapes(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, Shape]:
        """The shapes that the map requires of the parameters, given their actual shapes.

        A fused array requires the same layers and inputs of all its parameters; () stands for the
        unknown shape of a parameter that is missing.
        """
        if any(path not in shapes for path in self.paths):
            return {path: shapes.get(path, ()) for path in self.paths}
        lead = self._lead(shapes, model)
        first, start = shapes[self.paths[0]], len(lead)
        inputs = first[start : start + self.inputs]
        start += self.inputs
        return {path: (*lead, *inputs, *shapes[path][start:]) for path in self.paths}

    def to_bertjax(
        self, hf_arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Shape], model: Model
    ) -> dict[str, np.ndarray]:
        """Converts the arrays of all layers to parameters of these shapes."""
        lead = len(self._lead(shapes, model))
        layer_shapes = [shapes[path][lead:] for path in self.paths]
        layers = [self._split(hf_arrays[n], layer_shapes) for n in self._names(shapes, model)]
        stacks = zip(*layers, strict=True)
        return {
            path: np.stack(stack).reshape(shapes[path])
            for path, stack in zip(self.paths, stacks, strict=True)
        }

    def to_hf(self, params: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
        """Converts the parameters to the arrays of all layers."""
        names = self._names({path: params[path].shape for path in self.paths}, model)
        return {
            name: self._join([params[path][index] for path in self.paths])
            for name, index in names.items()
        }

    def _lead(self, shapes: Mapping[str, Shape], model: Model) -> Shape:
        """The sizes of the leading layer axes."""
        if self.layers is not None:
            return np.shape(self.layers(model))
        return shapes[self.paths[0]][: sum(mark in self.hf for mark in (LAYER, INNER))]

    def _names(self, shapes: Mapping[str, Shape], model: Model) -> dict[str, tuple[int, ...]]:
        """The HF name of the array in every layer, with the index of the layer in the stack."""
        if self.layers is not None:
            numbers = np.ndenumerate(np.asarray(self.layers(model)))
            return {self.hf.replace(LAYER, str(number)): index for index, number in numbers}
        names = {}
        for index in np.ndindex(*self._lead(shapes, model)):
            name = self.hf
            for mark, number in zip((LAYER, INNER), index, strict=False):
                name = name.replace(mark, str(number))
            names[name] = index
        return names

    def _hf_shape(self, shape: Shape) -> Shape:
        inputs, outputs = shape[: self.inputs], shape[self.inputs :]
        match self.layout:
            case Layout.VECTOR:
                return (math.prod(shape),)
            case Layout.LINEAR:
                return math.prod(outputs), math.prod(inputs)
            case Layout.LINEAR_HEADS:
                return *outputs, *inputs
            case Layout.CONV1D:
                return math.prod(inputs), math.prod(outputs)
        return shape

    def _split(self, array: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """The parameters of one layer, each [inputs, outputs], from the array of that layer."""
        pieces = [array]
        if len(shapes) > 1:
            axis = _OUTPUT_AXIS[self.layout]
            ends = np.cumsum([self._hf_shape(shape)[axis] for shape in shapes])
            pieces = np.split(array, ends[:-1], axis)
        if self.layout in _TRANSPOSED:
            inputs = math.prod(shapes[0][: self.inputs])
            pieces = [piece.reshape(-1, inputs).T for piece in pieces]
        return pieces

    def _join(self, params: Sequence[np.ndarray]) -> np.ndarray:
        """The array of one layer, from the parameters of that layer."""
        shapes = [self._hf_shape(param.shape) for param in params]
        if self.layout in _TRANSPOSED:
            inputs = math.prod(params[0].shape[: self.inputs])
            params = [param.reshape(inputs, -1).T for param in params]
        pieces = [param.reshape(shape) for param, shape in zip(params, shapes, strict=True)]
        if len(pieces) == 1:
            return np.ascontiguousarray(pieces[0])
        # Of transposed pieces, `concatenate` makes an array in column order.
        return np.ascontiguousarray(np.concatenate(pieces, _OUTPUT_AXIS[self.layout]))


def _add_suffix(bertjax: str | tuple[str, ...], name: str) -> str | tuple[str, ...]:
    if isinstance(bertjax, str):
        return f"{bertjax}/{name}"
    return tuple(f"{path}/{name}" for path in bertjax)


def dense(
    bertjax: str | tuple[str, ...],
    hf: str,
    inputs: int = 1,
    *,
    bias: bool = True,
    layout: Layout = Layout.LINEAR,
) -> list[ArrayMap]:
    """A linear layer; several bertjax paths: one HF layer that computes all of their outputs.

    Args:
      bertjax: Path of the module, or of several.
      hf: Name of the layer.
      inputs: Number of axes of the bertjax kernel that are summed over.
      bias: Whether there is a bias.
      layout: Layout of the HF weight.
    """
    kernel = ArrayMap(_add_suffix(bertjax, "kernel"), f"{hf}.weight", layout, inputs)
    if not bias:
        return [kernel]
    return [kernel, ArrayMap(_add_suffix(bertjax, "bias"), f"{hf}.bias", Layout.VECTOR)]


def conv1d(bertjax: str | tuple[str, ...], hf: str, inputs: int = 1) -> list[ArrayMap]:
    """A linear layer that is a Conv1D in transformers (GPT-2)."""
    return dense(bertjax, hf, inputs, layout=Layout.CONV1D)


def norm(bertjax: str, hf: str, *, bias: bool = True) -> list[ArrayMap]:
    """A LayerNorm."""
    scale = ArrayMap(f"{bertjax}/scale", f"{hf}.weight")
    return [scale, ArrayMap(f"{bertjax}/bias", f"{hf}.bias")] if bias else [scale]


def table(bertjax: str, hf: str) -> list[ArrayMap]:
    """An embedding table."""
    return [ArrayMap(f"{bertjax}/embedding", f"{hf}.weight")]


TOKEN_HEADS = {
    "squad": dense("squad/classifier/dense", "qa_outputs"),
    "ner": dense("ner/classifier/dense", "classifier"),
}
"""The maps of the heads over tokens that all architectures in transformers name alike."""


def with_layers(maps: Iterable[ArrayMap], layers: Layers) -> list[ArrayMap]:
    """The same arrays in other layers: for blocks that do not stand in layers 0, 1, 2 and so on."""
    return [dataclasses.replace(each, layers=layers) for each in maps]


def to_bertjax(
    maps: Iterable[ArrayMap],
    hf_arrays: Mapping[str, np.ndarray],
    shapes: Mapping[str, Shape],
    model: Model,
    source: str,
) -> dict[str, np.ndarray]:
    """Converts the arrays of a checkpoint, which must be exactly those of the map.

    Args:
      maps: All arrays of the architecture.
      hf_arrays: The arrays of the checkpoint by name.
      shapes: The shapes of the bertjax parameters by path.
      model: The fields of the bertjax model.
      source: Names the checkpoint in errors.

    Returns:
      The parameters by path.

    Raises:
      UserError: a name or a shape of the checkpoint differs; a table shows which.
      ValueError: the map does not fit the bertjax model.
    """
    maps = list(maps)
    _check_map(maps, shapes)
    expected: dict[str, Shape] = {}
    for each in maps:
        added = each.hf_shapes(shapes, model)
        if twice := expected.keys() & added.keys():
            raise ValueError(f"the name map contains {min(twice)} twice")
        expected |= added
    _check({name: array.shape for name, array in hf_arrays.items()}, expected, source)
    params: dict[str, np.ndarray] = {}
    for each in maps:
        params |= each.to_bertjax(hf_arrays, shapes, model)
    return params


def to_hf(
    maps: Iterable[ArrayMap], params: Mapping[str, np.ndarray], model: Model, source: str
) -> dict[str, np.ndarray]:
    """Converts bertjax parameters, which must be exactly those of the map.

    Args:
      maps: All arrays of the architecture.
      params: The parameters by path.
      model: The fields of the bertjax model.
      source: Names the checkpoint in errors.

    Returns:
      The arrays of the Hugging Face checkpoint by name.

    Raises:
      UserError: a parameter is missing, unexpected or of another shape; a table shows which.
    """
    maps = list(maps)
    shapes = {path: array.shape for path, array in params.items()}
    expected: dict[str, Shape] = {}
    for each in maps:
        expected |= each.bertjax_shapes(shapes, model)
    _check(shapes, expected, source)
    hf_arrays: dict[str, np.ndarray] = {}
    for each in maps:
        hf_arrays |= each.to_hf(params, model)
    return hf_arrays


def _check_map(maps: Sequence[ArrayMap], shapes: Mapping[str, Shape]) -> None:
    """Compares the paths of a map with those of the bertjax model.

    Raises:
      ValueError: a parameter is missing on one of the sides, or is mapped twice.
    """
    paths = collections.Counter(path for each in maps for path in each.paths)
    faults = {
        "parameters that the model does not have": paths.keys() - shapes.keys(),
        "parameters twice": {path for path, count in paths.items() if count > 1},
    }
    for fault, found in faults.items():
        if found:
            raise ValueError(f"the name map contains {fault}: {', '.join(sorted(found))}")
    if missing := shapes.keys() - paths.keys():
        raise ValueError(f"the name map lacks parameters: {', '.join(sorted(missing))}")


def _check(found: Mapping[str, Shape], expected: Mapping[str, Shape], source: str) -> None:
    names = dict.fromkeys([*expected, *found])
    differing = [name for name in names if found.get(name) != expected.get(name)]
    if not differing:
        return
    rows = list(_rows(differing[:_MAX_ROWS], found, expected))
    width = max(len(name) for _, name, _ in rows)
    lines = [f"  {kind:<11}  {name:<{width}}  {shapes}".rstrip() for kind, name, shapes in rows]
    omitted = len(differing) - len(rows)
    raise UserError(
        f"{source}: {len(differing)} of {len(names)} arrays do not fit; expected exactly those of "
        "the architecture\n" + "\n".join(lines + ([f"  and {omitted} more"] if omitted else []))
    )


def _rows(
    names: Iterable[str], found: Mapping[str, Shape], expected: Mapping[str, Shape]
) -> Iterator[tuple[str, str, str]]:
    for name in names:
        if name not in found:
            yield "missing", name, f"expected {list(expected[name])}" if expected[name] else ""
        elif name not in expected:
            yield "unexpected", name, f"got {list(found[name])}"
        else:
            yield "wrong shape", name, f"got {list(found[name])}, expected {list(expected[name])}"
