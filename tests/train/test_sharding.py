"""Meshes, and the placement of arrays."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bertjax.errors import UserError
from bertjax.train import sharding


def mesh_of(data=1, fsdp=1, tensor=1, sequence=1):
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor, "sequence": sequence}
    count = np.prod([size for size in sizes.values() if size > 0])
    return sharding.make_mesh(sizes, jax.devices()[: count if min(sizes.values()) > 0 else 8])


def boxed(shape, *names):
    return nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, jnp.float32), names)


def spec(shape, *names, mesh, rules=sharding.RULES):
    return sharding.shardings({"x": boxed(shape, *names)}, mesh, rules)["x"].spec


def test_a_mesh_has_four_axes_and_one_may_be_inferred():
    assert dict(mesh_of(data=-1, tensor=2).shape) == {
        "data": 4,
        "fsdp": 1,
        "tensor": 2,
        "sequence": 1,
    }
    assert mesh_of(data=2, fsdp=2, tensor=2).devices.size == 8
    assert mesh_of().devices.size == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"data": 3, "fsdp": 1, "tensor": 1, "sequence": 1},
            "config.mesh: got data=3, fsdp=1, tensor=1, sequence=1, which needs 3 "
            "devices, found 8; choose sizes whose product is 8",
        ),
        (
            {"data": -1, "fsdp": 1, "tensor": 3, "sequence": 1},
            "config.mesh: got data=-1, fsdp=1, tensor=3, sequence=1, which needs a multiple of 3 "
            "devices, found 8; choose sizes whose product is 8",
        ),
        (
            {"data": -1, "fsdp": -1, "tensor": 1, "sequence": 1},
            "config.mesh: got data=-1, fsdp=-1, tensor=1, sequence=1, expected sizes >= 1, "
            "of which one may be -1",
        ),
        (
            {"data": 8, "fsdp": 0, "tensor": 1, "sequence": 1},
            "config.mesh: got data=8, fsdp=0, tensor=1, sequence=1, expected sizes >= 1, "
            "of which one may be -1",
        ),
    ],
)
def test_a_mesh_that_does_not_fit(sizes, message):
    with pytest.raises(UserError) as error:
        sharding.make_mesh(sizes)
    assert str(error.value) == message


@dataclasses.dataclass(frozen=True)
class Described:
    """A fake device of a slice."""

    id: int
    slice_index: int
    process_index: int = 0
    platform: str = "cpu"
    device_kind: str = "cpu"


def slices(count, each):
    return [Described(number, number // each) for number in range(count * each)]


@pytest.mark.parametrize(
    ("sizes", "across", "within"),
    [
        ({"data": 6, "fsdp": 2, "tensor": 1, "sequence": 1}, ("data",), (3, 2, 1, 1)),
        ({"data": 1, "fsdp": 4, "tensor": 3, "sequence": 1}, ("fsdp",), (1, 2, 3, 1)),
        ({"data": -1, "fsdp": 3, "tensor": 1, "sequence": 2}, ("data",), (1, 3, 1, 2)),
        ({"data": 1, "fsdp": 1, "tensor": 12, "sequence": 1}, ("tensor",), (1, 1, 6, 1)),
    ],
)
def test_the_first_divisible_axis_is_split_across_slices(sizes, across, within):
    """Two slices of six devices: neighbours along every other axis share a slice."""
    mesh = sharding.make_mesh(sizes, slices(2, 6))
    numbers = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    for axis, name in enumerate(sharding.MESH_AXES):
        changes = np.ptp(numbers, axis=axis)
        assert (changes == (1 if name in across else 0)).all(), name
    assert tuple(sharding.shape_within_slice(mesh).values()) == within


def test_names_become_mesh_axes():
    mesh = mesh_of(fsdp=4, tensor=2)
    assert spec((12, 6), "embed", "mlp", mesh=mesh) == PartitionSpec("fsdp", "tensor")
    assert spec((3, 12, 2, 5), "layers", "embed", "heads", "kv", mesh=mesh) == PartitionSpec(
        None, "fsdp", "tensor", None
    )
    assert spec((12, 5), "embed", None, mesh=mesh) == PartitionSpec("fsdp", None)
    assert spec((7,), "norm", mesh=mesh) == PartitionSpec(None)


def test_arrays_without_names_are_replicated():
    placed = sharding.shardings(
        {"step": jax.ShapeDtypeStruct((), jnp.int32), "count": jax.ShapeDtypeStruct((4,), int)},
        mesh_of(data=8),
        sharding.RULES,
    )
    assert all(place.is_fully_replicated for place in placed.values())


def test_an_indivisible_vocabulary_is_replicated():
    mesh = mesh_of(fsdp=2, tensor=4)
    assert spec((30522, 8), "vocab", "embed", mesh=mesh) == PartitionSpec(None, "fsdp")
    assert spec((30524, 8), "vocab", "embed", mesh=mesh) == PartitionSpec("tensor", "fsdp")


def test_other_axes_must_divide():
    with pytest.raises(UserError) as error:
        sharding.shardings(
            {"query": {"kernel": boxed((8, 3, 5), "embed", "heads", "kv")}},
            mesh_of(fsdp=2, tensor=4),
            sharding.RULES,
        )
    assert str(error.value) == (
        "query/kernel: got size 3 of axis 'heads', expected a multiple of tensor=4; change "
        "config.mesh or the size"
    )


def test_earlier_rules_take_precedence():
    mesh = mesh_of(data=2, fsdp=2, tensor=2)
    rules = (("mlp", None), ("embed", ("data", "fsdp")), *sharding.RULES)
    assert spec((8, 6), "embed", "mlp", mesh=mesh, rules=rules) == PartitionSpec(
        ("data", "fsdp"), None
    )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (("mpl", "tensor"), "config.mesh.rules: no logical axis 'mpl': did you mean 'mlp'?"),
        (("mlp", "tensr"), "config.mesh.rules: no mesh axis 'tensr': did you mean 'tensor'?"),
        (
            ("mlp", "fsdp"),
            "config.mesh.rules: got one mesh axis for two axes of x, ('embed', 'mlp'), "
            "expected different ones; change one of them, or set it to None",
        ),
    ],
)
def test_impossible_rules(rule, message):
    with pytest.raises(UserError) as error:
        spec((8, 6), "embed", "mlp", mesh=mesh_of(data=8), rules=(rule, *sharding.RULES))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("batch_size", "microbatches", "message"),
    [
        (16, 1, None),
        (16, 2, None),
        (20, 1, "nearest: 16, 24"),
        (16, 3, "nearest: 24"),
        (5, 1, "nearest: 8"),
    ],
)
def test_batch_sizes_divide_over_devices_and_microbatches(batch_size, microbatches, message):
    mesh = mesh_of(data=4, fsdp=2)
    if message is None:
        sharding.check_batch_size(batch_size, mesh, microbatches)
        return
    with pytest.raises(UserError) as error:
        sharding.check_batch_size(batch_size, mesh, microbatches)
    assert str(error.value) == (
        f"batch_size={batch_size} does not divide into data=4 x fsdp=2 x "
        f"microbatches={microbatches} equal parts; {message}"
    )


def test_batches_are_sharded_over_data_and_fsdp():
    mesh = mesh_of(data=2, fsdp=2, tensor=2)
    rows = np.arange(24, dtype=np.int32).reshape(8, 3)
    placed = sharding.to_global({"rows": rows, "ids": np.arange(8)}, mesh)
    np.testing.assert_array_equal(placed["rows"], rows)
    shards = placed["rows"].addressable_shards
    assert {shard.data.shape for shard in shards} == {(2, 3)}
    # Devices along the tensor axis hold the same rows.
    starts = sorted(shard.index[0].start for shard in shards)
    assert starts == [0, 0, 2, 2, 4, 4, 6, 6]


def test_a_single_host_builds_all_rows():
    for mesh in (mesh_of(), mesh_of(data=4, tensor=2), mesh_of(tensor=8)):
        np.testing.assert_array_equal(sharding.local_rows(16, mesh), np.arange(16))


def test_an_indivisible_length_is_refused_with_the_nearest():
    mesh = sharding.make_mesh({"data": 4, "fsdp": 1, "tensor": 1, "sequence": 2})
    sharding.check_length(32, mesh)
    with pytest.raises(UserError, match="sequence=2 equal parts; nearest: 30, 32"):
        sharding.check_length(31, mesh)
