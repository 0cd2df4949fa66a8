"""Fused attention kernels: equality with the formula, masks, the choice within a program."""

import dataclasses
import functools
import importlib.util
import os
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from bertjax.layers import attention_kernels, masks
from bertjax.layers.alternating_stack import AlternatingStack
from bertjax.layers.attention import SelfAttention, attend
from bertjax.layers.attention_kernels import (
    find,
    log_kernel_choice,
)
from bertjax.layers.blocks import FeedForward, PreNormBlock
from bertjax.layers.dense import PRECISIONS
from bertjax.layers.dropout import Dropout, DropoutKeys
from bertjax.layers.splash_attention import block_size, splash
from bertjax.runtime import host

B, L, H, K = 4, 256, 2, 16


def masks_of_every_kind():
    """Masks of all kinds; the last of four rows has no visible key."""
    attention_mask = np.random.default_rng(3).random((B, L)) < 0.7
    packed_segment_ids = 1 + (np.arange(L) + 30 * np.arange(B)[:, None]) // 100
    attention_mask[-1], packed_segment_ids[-1] = False, 0
    padding, packed = (
        masks.padding(jnp.asarray(attention_mask)),
        masks.packed(jnp.asarray(packed_segment_ids)),
    )
    return {
        "padding": padding,
        "packed": packed,
        "causal": masks.causal(L) & padding,
        "all": masks.causal(L) & padding & packed,
        "window": masks.window(L, 51) & padding & packed,
        "causal window": masks.window(L, 51) & masks.causal(L) & padding,
    }


MASKS = masks_of_every_kind()


@pytest.fixture
def arrays(random):
    """Queries, keys and values."""
    return tuple(random(B, L, H, K) for _ in range(3))


class Attend(nn.Module):
    """`attend` as a module, which its dropout needs around it."""

    @nn.compact
    def __call__(self, *arrays):
        precision = PRECISIONS[arrays[0].dtype.name]
        return attend(*arrays, Dropout(0.0), precision, train=False)


def attend_without_kernel(*arrays):
    return Attend().apply({}, *arrays)


def assert_same(got, expected, atol):
    """Compare all rows except the last, which has no visible key: any finite output is good."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(x, np.float32) for x in (one, other))
        np.testing.assert_allclose(one[:-1], other[:-1], atol=atol)
        assert np.all(one[-1] == 0)


def value_and_gradients(function, probe, query, key, value, mask):
    def loss(query, key, value):
        output = function(query, key, value, mask)
        return (output.astype(jnp.float32) * probe).sum(), output

    gradients, output = jax.grad(loss, (0, 1, 2), has_aux=True)(query, key, value)
    return output, gradients


@pytest.mark.parametrize(
    ("kind", "dtype", "atol"),
    [*((kind, "float32", 1e-5) for kind in MASKS), ("all", "bfloat16", 0.03)],
)
def test_splash_and_its_gradients_equal_the_formula(kind, dtype, atol, arrays, random):
    """In float32: errors of bfloat16 matmuls differ between releases of XLA."""
    rounded = [x.astype(dtype) for x in arrays]
    exact = [x.astype(jnp.float32) for x in rounded]
    probe = random(B, L, H, K)
    kernel = functools.partial(splash, interpret=True)
    got, expected = (
        jax.jit(functools.partial(value_and_gradients, function, probe))(*inputs, MASKS[kind])
        for function, inputs in ((kernel, rounded), (attend_without_kernel, exact))
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype(dtype)}
    assert_same(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), got), expected, atol)


def test_splash_over_several_blocks_of_queries_and_keys(random):
    """640 tokens are five blocks of 128; 384 one."""
    assert [block_size(n) for n in (128, 384, 640, 1024)] == [128, 384, 128, 512]
    query, key, value = random(2, 384, 1, 8), random(2, 640, 1, 8), random(2, 640, 1, 8)
    mask = masks.padding(jnp.arange(640) < jnp.array([[601], [0]]))
    got = jax.jit(functools.partial(splash, interpret=True))(query, key, value, mask)
    assert_same(got, attend_without_kernel(query, key, value, mask), 1e-5)


@pytest.mark.parametrize(
    ("length", "window"), [(1152, None), (1152, 51), (640, 51)], ids=["full", "local", "split"]
)
def test_gradients_of_splash_over_several_blocks(length, window, random):
    """1,152 tokens are three blocks, of which a fused backward pass takes the keys as one; local
    attention in the five blocks of 640 tokens has two kernels in the backward pass."""
    arrays = [random(2, length, 1, 8) for _ in range(3)]
    mask = masks.padding(jnp.arange(length) < jnp.array([[601], [0]]))
    mask = mask & masks.window(length, window) if window else mask
    probe = random(2, length, 1, 8)
    got, expected = (
        jax.jit(functools.partial(value_and_gradients, function, probe))(*arrays, mask)
        for function in (functools.partial(splash, interpret=True), attend_without_kernel)
    )
    assert_same(got, expected, 1e-5)


def test_splash_on_a_mesh_uses_local_rows_and_heads(arrays):
    """Rows over data and fsdp, heads over tensor; and rows by vmap over data, as in training."""
    axes = ("data", "fsdp", "tensor", "sequence")
    mesh = jax.make_mesh((2, 2, 2, 1), axes, axis_types=(AxisType.Auto,) * 4)
    expected = attend_without_kernel(*arrays, MASKS["all"])
    arrays = (*arrays, MASKS["all"].key_mask, MASKS["all"].packed_segment_ids)

    def kernel(query, key, value, attention_mask, packed_segment_ids):
        mask = masks.causal(L) & masks.padding(attention_mask) & masks.packed(packed_segment_ids)
        return splash(query, key, value, mask, interpret=True)

    def by_rows(*arrays):
        with nn.logical_axis_rules([("batch", ("data", "fsdp")), ("heads", "tensor")]):
            return kernel(*arrays)

    def by_shards(*arrays):
        with nn.logical_axis_rules([("batch", "fsdp"), ("heads", "tensor")]):
            parts = [x.reshape(2, B // 2, *x.shape[1:]) for x in arrays]
            return jax.vmap(kernel, spmd_axis_name="data")(*parts).reshape(expected.shape)

    for function in (by_rows, by_shards):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            where = jax.sharding.NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
            compiled = jax.jit(function, in_shardings=where).lower(*arrays).compile()
        assert_same(compiled(*jax.device_put(arrays, where)), expected, 1e-5)
        assert "all-gather" not in compiled.as_text()


def test_masked_tokens_have_no_effect_and_no_gradient(arrays, random):
    """Padding, packed neighbours and later tokens: each mask hides tokens that the others show."""
    query, key, value = arrays
    query_index, mask = 200, MASKS["all"]
    visible = np.broadcast_to(mask.array(), (B, 1, L, L))[:, 0, query_index]
    probe = random(H, K)

    @jax.jit
    def attend_one(key, value):
        return splash(query, key, value, mask, interpret=True)[:, query_index]

    def loss(key, value):
        return jnp.einsum("bhk,hk->", attend_one(key, value), probe)

    noise = jnp.where(visible[..., None, None], 0.0, 100.0)
    np.testing.assert_array_equal(attend_one(key + noise, value + noise), attend_one(key, value))
    for gradient in jax.jit(jax.grad(loss, (0, 1)))(key, value):
        assert np.all(np.asarray(gradient)[visible] != 0)
        assert np.all(np.asarray(gradient)[~visible] == 0)


def described_mesh(platform, **axes):
    """A mesh of devices without hardware."""
    device = dataclasses.replace(
        jax.make_mesh((1,), ("data",)).abstract_mesh.abstract_device, platform=platform
    )
    types = (AxisType.Auto,) * len(axes)
    return AbstractMesh((*axes.values(),), (*axes,), axis_types=types, abstract_device=device)


def test_the_choice_follows_from_the_mesh_and_is_logged_once(arrays):
    def chosen(rate, requested="", train=True):
        dropout = DropoutKeys(jax.random.key(0), rate) if rate else None
        return find(*arrays[:2], MASKS["padding"], dropout, requested=requested, train=train)

    lines = []
    with log_kernel_choice(lines.append):
        assert chosen(0.1) is None
        with jax.sharding.use_abstract_mesh(described_mesh("cpu", data=1)):
            for requested in ("", "splash", "splash"):
                assert (chosen(0.0, requested) is None) == (requested == "")
        with jax.sharding.use_abstract_mesh(described_mesh("tpu", data=1)):
            assert chosen(0.1) is None
            assert chosen(0.0, train=False) is not None
    with jax.sharding.use_abstract_mesh(described_mesh("tpu", data=1)):
        chosen(0.0)
    assert lines == [
        "attention: xla: there is no kernel for cpu",
        "attention: splash: requested",
        "attention of 256 tokens: xla: splash does not support dropout of the weights, got 0.1; "
        "pallas does, but was never run on a TPU",
    ]


def test_without_a_mesh_a_kernel_must_be_requested(arrays):
    x, mask = arrays[0].reshape(B, L, H * K)[:1], masks.padding(jnp.ones((1, L), bool))
    params = SelfAttention(H, 0.0).init(jax.random.key(0), x, mask, train=False)

    def program(kernel):
        module = SelfAttention(H, 0.0, kernel=kernel)
        return str(jax.make_jaxpr(lambda x: module.apply(params, x, mask, train=True))(x))

    programs = {kernel: program(kernel) for kernel in ("", "xla", "splash")}
    assert "pallas_call" not in programs[""] + programs["xla"]
    assert "pallas_call" in programs["splash"]


def test_a_sharded_sequence_is_detected(arrays):
    lines = []
    with (
        log_kernel_choice(lines.append),
        jax.sharding.use_abstract_mesh(described_mesh("tpu", data=2, sequence=4)),
        nn.logical_axis_rules([("length", "sequence")]),
    ):
        found = find(*arrays[:2], MASKS["padding"], None, requested="splash", train=True)
    assert found is None
    assert "splash does not support sequences that are sharded over devices" in lines[0]


@pytest.mark.parametrize(("mask", "has_kernel"), [(MASKS["all"], True), (MASKS["window"], False)])
def test_local_attention_in_blocks_keeps_its_dropout_masks(mask, has_kernel, arrays):
    x = arrays[0].reshape(B, L, H * K)
    module, key = SelfAttention(H, 0.1, kernel="pallas"), jax.random.key(0)
    params = module.init(key, x, mask, train=False)
    program = jax.make_jaxpr(
        lambda x: module.apply(params, x, mask, train=True, rngs={"dropout": key})
    )(x)
    assert ("pallas_call" in str(program)) == has_kernel


def test_cudnn_accepts_the_selected_cases(monkeypatch, random):
    """As far as can be tested without a GPU: both passes are lowered to cuDNN calls."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    query, key, value = (random(2, 512, 3, 64).astype(jnp.bfloat16) for _ in range(3))
    mask = masks.padding(jnp.arange(512)[None] < jnp.array([[300], [512]]))
    probe = random(2, 512, 3, 64)
    function = functools.partial(value_and_gradients, attention_kernels.cudnn, probe)
    traced = jax.jit(lambda *arrays: function(*arrays, mask)).trace(query, key, value)
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("__cudnn$fmhaScaleBiasSoftmax(") == 1
    assert program.count("__cudnn$fmhaScaleBiasSoftmaxBackward(") == 1


def test_cudnn_in_layers_with_different_masks(monkeypatch):
    """As far as can be tested without a GPU: programs of initial values and layers are traced."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    bfloat16 = PRECISIONS["bfloat16"]
    blocks = [
        PreNormBlock(
            SelfAttention(2, 0.0, window=window, kernel="cudnn", precision=bfloat16),
            FeedForward(24, precision=bfloat16),
            0.0,
        )
        for window in (0, 4)
    ]
    stack, x = AlternatingStack(tuple(blocks), 5), jnp.ones((3, 8, 16), jnp.bfloat16)
    mask = masks.padding(jnp.arange(8)[None] < jnp.array([[5], [8], [1]]))

    def initialised(key):
        return stack.init_with_output(key, x, mask, train=False)

    with jax.sharding.use_abstract_mesh(described_mesh("gpu", data=1)):
        program = str(jax.make_jaxpr(initialised)(jax.random.key(0)))
    assert program.count("dot_product_attention_fwd_wrapper[") > len(blocks)


CUDA = any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


@pytest.mark.skipif(not (host.list_gpus() and CUDA), reason="no GPU, or no JAX for it")
def test_cudnn_and_its_gradients_equal_the_formula():
    """In a separate process, because this one does not use the GPU."""
    environment = {name: v for name, v in os.environ.items() if name != "JAX_PLATFORMS"}
    subprocess.run([sys.executable, __file__], env=environment, check=True, timeout=300)


def compare_cudnn_with_the_formula():
    generator = np.random.default_rng(0)
    query, key, value = (
        jnp.asarray(generator.normal(size=(3, 512, 3, 64)), jnp.bfloat16) for _ in range(3)
    )
    probe = jnp.asarray(generator.normal(size=(3, 512, 3, 64)), jnp.float32)
    mask = masks.padding(jnp.arange(512)[None] < jnp.array([[300], [512], [1]]))
    got, expected = (
        jax.jit(functools.partial(value_and_gradients, function, probe))(query, key, value, mask)
        for function in (attention_kernels.cudnn, attend_without_kernel)
    )
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (one, other)), atol=0.03)
    hidden = ~np.asarray(mask.key_mask)
    for gradient in got[1][1:]:
        assert np.all(np.asarray(gradient)[hidden] == 0)


if __name__ == "__main__":
    assert jax.default_backend() == "gpu"
    compare_cudnn_with_the_formula()
