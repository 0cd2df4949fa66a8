"""Labelled images: scikit-learn's digits, or an `.npz` with `images` and `labels`."""

import dataclasses
import hashlib
import pathlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int32

from bertjax.data.format import ExampleSpec, HostBatch
from bertjax.data.format import Format as BaseFormat
from bertjax.data.random import permute
from bertjax.errors import UserError

DIGITS = "digits"

_BRIGHTEST_DIGIT = 16

_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)
"""Errors of reading a file that is no `.npz`, is damaged or has other arrays."""

_NUMBERS = "biuf"
"""Kinds of dtypes: bool, integers and floating-point numbers."""


@dataclasses.dataclass(frozen=True)
class Images:
    """The labelled images of one split.

    Attributes:
      path: Path of the file.
      pixels: Pixel values in [-1, 1].
      labels: Class indices.
    """

    path: str
    pixels: Float32[np.ndarray, "n Y X C"]
    labels: Int32[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the pixels and labels."""
        digest = hashlib.sha256(repr(self.pixels.shape).encode())
        digest.update(np.ascontiguousarray(self.pixels).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()

    def take(self, rows: Int[np.ndarray, " m"]) -> "Images":
        """Selects images by number."""
        return Images(self.path, self.pixels[rows], self.labels[rows])


class ImageExamples:
    """Images, in another random order in every epoch.

    Attributes:
      seed: Seed of the order.
      max_seq_length: 1, since an image counts as one token.
      num_examples: Number of images.
    """

    max_seq_length = 1

    def __init__(self, images: Images, seed: int):
        self.seed, self.num_examples, self._images = seed, len(images), images

    def order(self, epoch: int, rank: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The numbers of the images at positions of an epoch."""
        return permute(rank, self.num_examples, self.seed, "images", epoch)

    def build(self, epoch: int, example: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """Builds `pixel_values` (float32 [n Y X C]), `labels` (int32 [n]) and `example_id`."""
        example = np.asarray(example, np.int64)
        return {
            "pixel_values": self._images.pixels[example],
            "labels": self._images.labels[example],
            "example_id": example.astype(np.uint32),
        }


def read(
    inputs: Sequence[str], *, validation_input: Sequence[str], validation_fraction: float
) -> tuple[Images, Images | None]:
    """Reads the training and the held-out split.

    Args:
      inputs: One item: `digits`, or the path of an `.npz`.
      validation_input: The same for the held-out split, or empty.
      validation_fraction: Held-out share of `inputs` if `validation_input` is empty; independent of
        any seed.

    Raises:
      UserError: a file is missing or invalid.
    """
    images = _read_one(inputs)
    if validation_input:
        return images, _read_one(validation_input)
    count = round(validation_fraction * len(images))
    shuffled = permute(np.arange(len(images)), len(images), 0, "held out", 0)
    held_out = images.take(shuffled[:count]) if count else None
    return images.take(shuffled[count:]), held_out


def check_labels(images: Images, num_labels: int, field: str) -> None:
    """Raises `UserError` unless all labels are in 0 to num_labels - 1, the value of a field."""
    low, high = int(images.labels.min()), int(images.labels.max())
    if low < 0 or high >= num_labels:
        raise UserError(
            f"{images.path} has labels from {low} to {high}, expected 0 to {num_labels - 1}: set "
            f"--config.{field}={high + 1}, or number classes from 0"
        )


def _read_one(inputs: Sequence[str]) -> Images:
    if len(inputs) != 1:
        raise UserError(
            f"config.data.input: got {tuple(inputs)}, expected one item: digits, or the path of "
            "an .npz with images and labels"
        )
    (name,) = inputs
    return _digits() if name == DIGITS else _npz(pathlib.Path(name))


def _digits() -> Images:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = bunch.images[..., None] / (_BRIGHTEST_DIGIT / 2) - 1
    return Images(DIGITS, pixels.astype(np.float32), bunch.target.astype(np.int32))


def _npz(path: pathlib.Path) -> Images:
    try:
        # NumPy would leave a damaged file open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            pixels, labels = file["images"], file["labels"]
    except _DAMAGE as error:
        raise UserError(
            f"{path}: expected {DIGITS}, or an .npz with images [n height width channels] and "
            f"labels [n] ({error})"
        ) from None
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    if pixels.ndim != 4 or labels.shape != pixels.shape[:1] or not len(labels):
        raise UserError(
            f"{path}: got images {list(pixels.shape)} and labels {list(labels.shape)}, expected [n "
            "height width channels] and [n]"
        )
    if pixels.dtype.kind not in _NUMBERS or not _are_integers(labels):
        raise UserError(
            f"{path}: got images of {pixels.dtype} and labels of {labels.dtype}, expected images "
            "of numbers, and labels that are integers"
        )
    if pixels.dtype == np.uint8:
        pixels = pixels / 127.5 - 1
    return Images(str(path), pixels.astype(np.float32), labels.astype(np.int32))


def _are_integers(values: np.ndarray) -> bool:
    """Whether all values are numbers without a fraction that fit in int32."""
    if values.dtype.kind not in _NUMBERS:
        return False
    bounds = np.iinfo(np.int32)
    fit = (values >= bounds.min) & (values <= bounds.max)
    return bool(np.all(fit & (np.floor(values) == values)))


class Format(BaseFormat):
    """See `ImageExamples`."""

    reads_text = False

    @staticmethod
    def examples(spec: ExampleSpec) -> ImageExamples:
        return ImageExamples(spec.split, spec.seed)

    @staticmethod
    def read(
        data: Mapping[str, Any], objectives: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Images, Images | None]:
        held_out = {name: data[name] for name in ("validation_input", "validation_fraction")}
        splits = read(data["input"], **held_out)
        for name, fields in objectives.items():
            for split in splits if "num_labels" in fields else ():
                if split is not None:
                    check_labels(split, fields["num_labels"], f"objectives.{name}.num_labels")
        return splits

    @classmethod
    def random_batch(cls, model, shape, random) -> HostBatch:
        size = shape[0], model["image_size"], model["image_size"], model["num_channels"]
        return {
            "pixel_values": random.uniform(-1, 1, size).astype(np.float32),
            "labels": np.zeros(shape[0], np.int32),
            "example_id": np.arange(shape[0], dtype=np.uint32),
        }
