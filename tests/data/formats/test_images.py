"""The images format: reading, splits and errors."""

import numpy as np
import pytest

from bertjax.data.formats import images
from bertjax.errors import UserError


@pytest.fixture
def file(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "some.npz", **arrays)
        return str(tmp_path / "some.npz")

    return save


def read(name, fraction=0.0):
    return images.read((name,), validation_input=(), validation_fraction=fraction)


def test_digits_are_split_once():
    learned, held_out = read("digits", 0.2)
    assert (len(learned), len(held_out)) == (1438, 359)
    assert learned.pixels.shape == (1438, 8, 8, 1)
    assert (learned.pixels.min(), learned.pixels.max()) == (-1, 1)
    seen = {image.tobytes() for image in learned.pixels}
    assert sum(image.tobytes() in seen for image in held_out.pixels) == 0
    assert learned.fingerprint != held_out.fingerprint


def test_an_epoch_has_every_image_once():
    learned, _ = read("digits")
    examples = images.ImageExamples(learned, seed=3)
    first, second = (examples.order(epoch, np.arange(len(learned))) for epoch in (0, 1))
    assert (np.sort(first) == np.arange(len(learned))).all()
    assert (first != second).any()
    batch = examples.build(0, first[:5])
    np.testing.assert_array_equal(batch["pixel_values"], learned.pixels[first[:5]])
    np.testing.assert_array_equal(batch["labels"], learned.labels[first[:5]])


def test_bytes_are_scaled_to_values_around_zero(file):
    name = file(images=np.array([[[0, 255]], [[51, 102]]], np.uint8), labels=np.array([0, 1]))
    learned, held_out = read(name)
    assert held_out is None
    np.testing.assert_allclose(learned.pixels[..., 0], [[[-1, 1]], [[-0.6, -0.2]]], atol=1e-6)


def test_user_errors_are_one_line(file, tmp_path):
    with pytest.raises(UserError, match=r"absent.npz: expected digits, or an .npz"):
        read(str(tmp_path / "absent.npz"))
    with pytest.raises(UserError, match=r"images \[2, 3\] and labels \[2\]"):
        read(file(images=np.zeros((2, 3)), labels=np.zeros(2, int)))
    pixels = np.zeros((2, 3, 3))
    for labels in ([0, 0.5], [0, np.nan], [0, 2**31], ["a", "b"]):
        with pytest.raises(UserError, match="expected images of numbers, and labels that are int"):
            read(file(images=pixels, labels=np.array(labels)))
    assert read(file(images=pixels, labels=np.array([1.0, 2.0])))[0].labels.tolist() == [1, 2]
    whole = (tmp_path / "some.npz").read_bytes()
    np.save(tmp_path / "array.npy", pixels)
    array = (tmp_path / "array.npy").read_bytes()
    for content in (b"", b"x", whole[:-9], whole[:200], array):
        (tmp_path / "damaged.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"damaged.npz: expected digits, or an .npz"):
            read(str(tmp_path / "damaged.npz"))
    with pytest.raises(UserError, match="expected one item"):
        images.read(("a", "b"), validation_input=(), validation_fraction=0)
    learned, _ = read("digits")
    with pytest.raises(UserError, match="labels from 0 to 9, expected 0 to 4"):
        images.check_labels(learned, 5, "objectives.image_class.num_labels")
