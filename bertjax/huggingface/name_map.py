"""Map array names between bertjax's parameter tree and Hugging Face's checkpoints.

Ours are nested, keep heads apart from their width, and stack the layers along a first axis. Theirs
are flat, one array a layer, with torch's linear maps as [out, in]. A `Pair` knows both names and
the way from one form to the other; an architecture is a list of them.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bertjax.errors import UserError

Shape = tuple[int, ...]

LAYER, INNER = "{layer}", "{inner}"
"""Stand in their name for the number of a layer, and for that of a layer within a group of layers;
ours then has one leading axis for each of them, in this order."""

_SHOWN_ROWS = 20


@dataclasses.dataclass(frozen=True)
class Pair:
    """One array by both names.

    Attributes:
      ours: Path in our parameters, such as `encoder/pooler/dense/kernel`.
      theirs: Name in their file, which may hold `LAYER`, or `LAYER` and `INNER`.
      inputs: Leading axes of ours that a linear map sums over, and theirs keeps as one last axis;
        0 for what is no linear map.
      flat: Whether theirs is a vector whatever the shape of ours.
      apart: Whether theirs keeps the inputs of a linear map on axes of their own, behind those of
        the outputs.
      first: Whether theirs keeps the inputs of a linear map before the outputs, as their Conv1D.
    """

    ours: str
    theirs: str
    inputs: int = 0
    flat: bool = False
    apart: bool = False
    first: bool = False

    @property
    def stacked(self) -> int:
        """How many leading axes of ours number the layers."""
        return sum(mark in self.theirs for mark in (LAYER, INNER))

    @property
    def first_name(self) -> str:
        """Their name of the array, or of the first layer of it."""
        return _numbered(self.theirs, (0, 0))

    def names(self, shape: Shape) -> list[str]:
        """Their name of the array, or of every layer of it, where ours has this shape."""
        numbers = itertools.product(*map(range, shape[: self.stacked]))
        return [_numbered(self.theirs, each) for each in numbers]

    def their_shape(self, shape: Shape) -> Shape:
        """The shape of each of theirs where ours has this shape."""
        shape = shape[self.stacked :]
        inputs, outputs = shape[: self.inputs], shape[self.inputs :]
        if self.apart:
            return *outputs, *inputs
        if self.first:
            return math.prod(inputs), math.prod(outputs)
        if self.inputs:
            return math.prod(outputs), math.prod(inputs)
        return (math.prod(shape),) if self.flat else shape

    def to_ours(self, arrays: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
        """Makes our array, of this shape, of theirs, in the order of `names`."""
        if self.inputs and not self.first:
            inputs = math.prod(shape[self.stacked :][: self.inputs])
            arrays = [array.reshape(-1, inputs).T for array in arrays]
        return np.stack(arrays).reshape(shape)

    def to_theirs(self, array: np.ndarray) -> list[np.ndarray]:
        """Makes their arrays, in the order of `names`, of ours."""
        shape = self.their_shape(array.shape)
        layers = list(array.reshape(-1, *array.shape[self.stacked :]))
        if self.inputs and not self.first:
            outputs = math.prod(layers[0].shape[self.inputs :])
            layers = [layer.reshape(-1, outputs).T for layer in layers]
        return [np.ascontiguousarray(layer.reshape(shape)) for layer in layers]


def _numbered(theirs: str, numbers: Sequence[int]) -> str:
    for mark, number in zip((LAYER, INNER), numbers, strict=False):
        theirs = theirs.replace(mark, str(number))
    return theirs


def dense(ours: str, theirs: str, inputs: int = 1) -> list[Pair]:
    """A linear map with a bias; `inputs` axes of our kernel are summed over."""
    return [
        Pair(f"{ours}/kernel", f"{theirs}.weight", inputs),
        Pair(f"{ours}/bias", f"{theirs}.bias", flat=True),
    ]


def conv(ours: str, theirs: str, inputs: int = 1) -> list[Pair]:
    """A linear map with a bias that is a Conv1D of theirs."""
    return [
        Pair(f"{ours}/kernel", f"{theirs}.weight", inputs, first=True),
        Pair(f"{ours}/bias", f"{theirs}.bias", flat=True),
    ]


def norm(ours: str, theirs: str) -> list[Pair]:
    """A LayerNorm."""
    return [Pair(f"{ours}/scale", f"{theirs}.weight"), Pair(f"{ours}/bias", f"{theirs}.bias")]


def table(ours: str, theirs: str) -> list[Pair]:
    """An embedding table."""
    return [Pair(f"{ours}/embedding", f"{theirs}.weight")]


def to_ours(
    pairs: Iterable[Pair], theirs: Mapping[str, np.ndarray], shapes: Mapping[str, Shape], what: str
) -> dict[str, np.ndarray]:
    """Our arrays by name, made of theirs, which have to be exactly those that are expected.

    Args:
      pairs: Both names of every array.
      theirs: Their arrays by name.
      shapes: Of our arrays, by name.
      what: Whose arrays they are, for the error.

    Raises:
      UserError: a name or a shape of theirs does not fit; a table shows which.
    """
    pairs = list(pairs)
    wanted = {
        name: pair.their_shape(shapes[pair.ours])
        for pair in pairs
        for name in pair.names(shapes[pair.ours])
    }
    _check({name: array.shape for name, array in theirs.items()}, wanted, what)
    made = {}
    for pair in pairs:
        shape = shapes[pair.ours]
        arrays = [theirs[name] for name in pair.names(shape)]
        made[pair.ours] = pair.to_ours(arrays, shape)
    return made


def to_theirs(
    pairs: Iterable[Pair], ours: Mapping[str, np.ndarray], what: str
) -> dict[str, np.ndarray]:
    """Their arrays by name, made of ours, which have to be exactly those that are expected.

    Raises:
      UserError: there is an array that has no place in theirs, or one is missing.
    """
    pairs = list(pairs)
    wanted = {pair.ours: ours[pair.ours].shape if pair.ours in ours else () for pair in pairs}
    _check({name: array.shape for name, array in ours.items()}, wanted, what)
    made = {}
    for pair in pairs:
        array = ours[pair.ours]
        made |= zip(pair.names(array.shape), pair.to_theirs(array), strict=True)
    return made


def _check(found: Mapping[str, Shape], wanted: Mapping[str, Shape], what: str) -> None:
    names = dict.fromkeys([*wanted, *found])
    differing = [name for name in names if found.get(name) != wanted.get(name)]
    if not differing:
        return
    rows = list(_rows(differing[:_SHOWN_ROWS], found, wanted))
    width = max(len(name) for _, name, _ in rows)
    lines = [f"  {kind:<11}  {name:<{width}}  {shapes}".rstrip() for kind, name, shapes in rows]
    hidden = len(differing) - len(rows)
    raise UserError(
        f"{what}: {len(differing)} of {len(names)} arrays do not fit; expected exactly those of "
        f"the "
        "architecture\n" + "\n".join(lines + ([f"  and {hidden} more"] if hidden else []))
    )


def _rows(
    names: Iterable[str], found: Mapping[str, Shape], wanted: Mapping[str, Shape]
) -> Iterator[tuple[str, str, str]]:
    for name in names:
        if name not in found:
            yield "missing", name, f"expected {list(wanted[name])}" if wanted[name] else ""
        elif name not in wanted:
            yield "unexpected", name, f"came {list(found[name])}"
        else:
            yield "wrong shape", name, f"came {list(found[name])}, expected {list(wanted[name])}"
