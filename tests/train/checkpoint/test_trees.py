"""Names of leaves, and fingerprints of trees."""

import hashlib
import struct
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.train.checkpoint.trees import (
    fingerprint,
    flatten_names,
    nest,
    num_parameters,
    unflatten_like,
)


class Moments(NamedTuple):
    mu: dict
    count: int


TREE = (Moments({"b": {"kernel": 1}, "a": 2}, 3), None, [4])


def test_names_are_paths_through_every_kind_of_container():
    assert flatten_names(TREE) == {"0/mu/a": 2, "0/mu/b/kernel": 1, "0/count": 3, "2/0": 4}


def test_like_puts_leaves_back_by_name():
    leaves = {name: value * 10 for name, value in flatten_names(TREE).items()}
    assert unflatten_like(TREE, leaves) == (Moments({"b": {"kernel": 10}, "a": 20}, 30), None, [40])


def test_nested_undoes_named_for_plain_dicts():
    assert nest({"a/b": 1, "a/c/d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


def test_fingerprint_is_the_documented_hash():
    header = b"a/w\0float32\0" + b"2,1"
    expected = struct.pack("<Q", len(header)) + header + np.float32([1.5, -2]).tobytes()
    tree = {"a": {"w": jnp.array([[1.5], [-2.0]])}}
    assert fingerprint(tree) == hashlib.sha256(expected).hexdigest()


def test_fingerprint_depends_on_content_not_on_containers_or_devices():
    values = np.arange(24, dtype=np.float32).reshape(8, 3)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(values, jax.NamedSharding(mesh, jax.P("data")))
    plain = fingerprint({"x": values, "0": np.int32(1)})
    assert plain == fingerprint({"0": np.int32(1), "x": spread})
    assert fingerprint([values]) == fingerprint({"0": values})
    different = [
        {"y": values, "0": np.int32(1)},
        {"x": values.reshape(3, 8), "0": np.int32(1)},
        {"x": values.view(np.int32), "0": np.int32(1)},
        {"x": np.where(values == 7, -0.0, values), "0": np.int32(1)},
    ]
    assert len({plain, *map(fingerprint, different)}) == 5


def test_fingerprint_takes_scalars_bfloat16_and_empty_arrays():
    tree = {"a": jnp.zeros(()), "b": jnp.ones((2, 3), jnp.bfloat16), "c": jnp.zeros((0, 4))}
    assert fingerprint(tree) == fingerprint(jax.tree.map(np.asarray, tree))


def test_num_parameters():
    assert num_parameters({"a": np.zeros((3, 5)), "b": np.zeros(()), "c": np.zeros((0, 2))}) == 16
