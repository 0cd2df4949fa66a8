"""Rotary position embeddings: rotations of pairs of features, and scores of relative positions."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.position_encodings import Rotary

B, L, H, K = 2, 7, 3, 10


def planes(x, rotary):
    """The K / 2 rotated pairs of features, as complex numbers."""
    x = np.asarray(x, np.float64)
    if rotary.interleaved:
        return x[..., 0::2] + 1j * x[..., 1::2]
    return x[..., : K // 2] + 1j * x[..., K // 2 :]


@pytest.mark.parametrize("rotary", [Rotary(100.0), Rotary(100.0, interleaved=True)])
def test_every_pair_is_rotated_by_its_own_frequency(rotary, random):
    x = random(B, L, H, K)
    frequencies = 100.0 ** (-2 * np.arange(K // 2) / K)
    turns = np.exp(1j * np.arange(L)[:, None] * frequencies)[None, :, None]
    np.testing.assert_allclose(planes(rotary(x), rotary), planes(x, rotary) * turns, atol=1e-5)


def test_numbers_by_hand():
    x = jnp.array([[[[1.0, 0.0, 0.0, 2.0]], [[1.0, 0.0, 0.0, 2.0]]]])
    got = Rotary(4.0)(x)
    np.testing.assert_allclose(got[0, 0, 0], [1, 0, 0, 2])
    # Features 0 and 2 turn by 1 radian, 1 and 3 by 4 ** -0.5.
    sines, cosines = np.sin([1.0, 0.5]), np.cos([1.0, 0.5])
    expected = [cosines[0], -2 * sines[1], sines[0], 2 * cosines[1]]
    np.testing.assert_allclose(got[0, 1, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_depend_only_on_relative_positions(interleaved, random):
    query, key, rotary = random(1, 1, 1, K), random(1, 1, 1, K), Rotary(50.0, interleaved)

    def score(query_position, key_position):
        rotated = rotary(query, jnp.array([[query_position]]))
        return np.vdot(rotated, rotary(key, jnp.array([[key_position]])))

    for distance in (-5, 0, 3):
        expected = score(7 + distance, 7)
        for position in (5, 11, 64):
            assert score(position + distance, position) == pytest.approx(expected, abs=1e-4)
    assert abs(score(3, 7) - score(7, 3)) > 0.1


def test_positions_of_every_row(random):
    x, rotary = random(B, L, H, K), Rotary()
    positions = jnp.array([[0, 1, 2, 3, 4, 5, 6], [9, 0, 3, 3, 1, 6, 2]])
    got = rotary(x, positions)
    np.testing.assert_array_equal(got[0], rotary(x)[0])
    np.testing.assert_array_equal(got[1, 1], x[1, 1])
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


def test_the_type_of_the_input_is_kept_and_angles_are_float32(random):
    x = random(1, 300, 1, K)
    got = Rotary()(x.astype(jnp.bfloat16))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(got, np.float32), Rotary()(x), atol=0.05)


def test_unsupported_inputs_are_refused(random):
    with pytest.raises(ValueError, match="got heads of width 5, expected an even one"):
        Rotary()(random(1, 2, 1, 5))
    with pytest.raises(ValueError, match=r"theta of rotary embeddings: got 0.0, expected"):
        Rotary(0.0)
