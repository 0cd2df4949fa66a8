"""Gradient accumulation: placement of microbatches, and one all-reduce per step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.profiling import hlo, traffic
from bertjax.train import sharding
from bertjax.train.accumulation import (
    merge_microbatches,
    reduce_shards,
    split_microbatches,
    sum_over,
)
from bertjax.train.sharding import num_data_shards, vmap_data_shards

B, D, H = 32, 4, 6


def test_a_device_keeps_its_rows_when_a_batch_is_split():
    rows = np.arange(16)
    parts = split_microbatches({"rows": rows}, 2, 4)["rows"]
    assert parts.shape == (2, 4, 2)
    assert sorted(parts.ravel()) == rows.tolist()
    # Of four devices, each held four rows in a row: every part has two of each.
    np.testing.assert_array_equal(parts // 4, np.broadcast_to(np.arange(4)[:, None], (2, 4, 2)))
    np.testing.assert_array_equal(merge_microbatches({"rows": parts})["rows"], rows)
    pairs = split_microbatches({"rows": rows}, 2, 4, rows_per_example=2)["rows"]
    np.testing.assert_array_equal(pairs[0], [[0, 1], [4, 5], [8, 9], [12, 13]])
    np.testing.assert_array_equal(merge_microbatches({"rows": pairs}, 2)["rows"], rows)


def loss(weights, rows):
    return jnp.sum(jnp.tanh(rows @ weights) ** 2)


def test_gradients_are_all_reduced_over_the_data_axis_once_per_step():
    mesh = sharding.make_mesh({"data": 4, "fsdp": 1, "tensor": 2, "sequence": 1})

    def step(weights, rows):
        def part_gradient(part):
            return jax.grad(loss)(weights, part), part.sum(axis=1)

        parts = split_microbatches(rows, 4, num_data_shards())
        gradient, sums = sum_over(vmap_data_shards(part_gradient), parts)
        return gradient.sum(0), merge_microbatches(sums)

    over_tensor = NamedSharding(mesh, PartitionSpec(None, "tensor"))
    over_data = NamedSharding(mesh, PartitionSpec("data"))
    compiled = (
        jax.jit(
            sharding.on_mesh(step, mesh, sharding.RULES),
            in_shardings=(over_tensor, over_data),
            out_shardings=(over_tensor, over_data),
        )
        .lower(jax.ShapeDtypeStruct((D, H), np.float32), jax.ShapeDtypeStruct((B, D), np.float32))
        .compile()
    )
    (found,) = traffic.find_collectives(hlo.parse(compiled.as_text()), mesh.shape)
    assert (found.kind, found.axes, found.devices, found.times) == (
        "all-reduce",
        "data",
        4,
        1,
    )

    random = np.random.default_rng(0)
    weights, rows = (random.normal(size=size).astype(np.float32) for size in ((D, H), (B, D)))
    gradient, sums = compiled(jax.device_put(weights, over_tensor), jax.device_put(rows, over_data))
    np.testing.assert_allclose(gradient, jax.grad(loss)(weights, rows), rtol=1e-5)
    np.testing.assert_allclose(sums, rows.sum(axis=1), rtol=1e-6)


def test_reduction_in_bfloat16_rounds_to_bfloat16():
    """Four shards: each is rounded to eight bits, and so are three sums."""
    sums = np.random.default_rng(0).uniform(1, 2, (4, D, H)).astype(np.float32)
    found = reduce_shards({"kernel": sums}, jnp.bfloat16)["kernel"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, sums.sum(0), rtol=4 * 2**-9)
    np.testing.assert_array_equal(found, found.astype(jnp.bfloat16).astype(np.float32))
    assert np.any(found != sums.sum(0))
    np.testing.assert_allclose(reduce_shards(sums), sums.sum(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("axis", "spec", "dtype"),
    [
        ("tensor", PartitionSpec(None, "data", None, None), None),
        ("tensor", PartitionSpec(None, "data", "tensor", None), None),
        ("fsdp", PartitionSpec("data", "fsdp", None, None), None),
        ("fsdp", PartitionSpec(None, None, None, ("fsdp", "data")), None),
        ("fsdp", PartitionSpec("data", "fsdp", None, None), jnp.bfloat16),
    ],
    ids=str,
)
def test_reduce_scatter_sends_each_device_its_shard(axis, spec, dtype):
    sizes = dict.fromkeys(sharding.MESH_AXES, 1) | {"data": 4, axis: 2}
    mesh = sharding.make_mesh(sizes)
    over_data, placed = (NamedSharding(mesh, each) for each in (PartitionSpec("data"), spec))
    sums = np.random.default_rng(0).uniform(1, 2, (4, 8, 16, 2, 24)).astype(np.float32)
    compiled = (
        jax.jit(
            sharding.on_mesh(lambda sums: reduce_shards(sums, dtype, spec), mesh, sharding.RULES),
            in_shardings=over_data,
            out_shardings=placed,
        )
        .lower(sums)
        .compile()
    )
    found = compiled(jax.device_put(sums, over_data))
    np.testing.assert_allclose(found, sums.sum(0), rtol=4 * 2**-9 if dtype else 1e-6)
    shape = placed.shard_shape(found.shape)
    assert {shard.data.shape for shard in found.addressable_shards} == {shape}
    sent = traffic.find_collectives(hlo.parse(compiled.as_text()), mesh.shape)
    # In bfloat16 CPUs sum whole.
    expected = "reduce-scatter" if dtype is None else "all-reduce"
    assert {each.kind for each in sent if each.axes == "data"} == {expected}


def test_one_shard_is_neither_sent_nor_rounded():
    sums = np.random.default_rng(0).normal(size=(1, D, H)).astype(np.float32)
    np.testing.assert_array_equal(reduce_shards(sums, jnp.bfloat16), sums[0])
