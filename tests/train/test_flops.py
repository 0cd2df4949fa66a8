"""Counts of FLOPs, by hand."""

import dataclasses
import itertools
import types

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas

from bertjax import build
from bertjax.config import load_config
from bertjax.layers.attention_kernels import with_kernel
from bertjax.profiling import dummy
from bertjax.runtime.chips import peak_flops_of_kind, peak_flops_per_second
from bertjax.train.report import flops, training_flops


def ones(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_matmuls_with_batch_axes():
    assert flops(lambda a, b: a @ b, ones(3, 5), ones(5, 7)) == 2 * 3 * 5 * 7
    scores = lambda q, k: jnp.einsum("blhk,bmhk->bhlm", q, k)  # noqa: E731
    assert flops(scores, ones(2, 3, 5, 7), ones(2, 11, 5, 7)) == 2 * (2 * 5) * 3 * 11 * 7


def test_matmuls_in_8_bits_are_counted_alone():
    def both(x, kernel):
        quantized = jax.lax.dot(x.astype(jnp.int8), kernel.astype(jnp.int8))
        return (x @ kernel).sum() + quantized.sum()

    shapes = ones(3, 5), ones(5, 7)
    assert flops(both, *shapes) == 2 * flops(both, *shapes, operand_bytes=1) == 4 * 3 * 5 * 7


def test_a_scan_counts_as_often_as_it_runs_also_inside_other_programs():
    def stack(x, kernels):
        body = jax.checkpoint(lambda x, kernel: (jnp.tanh(x @ kernel), None))
        return jax.lax.scan(body, x, kernels)[0].sum()

    expected = 13 * 2 * 3 * 5 * 5
    assert flops(jax.jit(stack), ones(3, 5), ones(13, 5, 5)) == expected
    assert training_flops(stack, ones(3, 5), ones(13, 5, 5)) == 3 * expected


def test_dead_matmuls_do_not_count():
    """In a loop inside another program, next to a live one."""

    def body(x, kernel):
        return x @ kernel, x @ (kernel @ kernel)

    def both(x, kernels):
        return jax.lax.scan(body, x, kernels)

    assert flops(lambda *xs: jax.jit(both)(*xs)[0], ones(3, 5), ones(7, 5, 5)) == 7 * 2 * 3 * 5 * 5


def test_a_backward_pass_has_twice_the_flops():
    def loss(kernel, x):
        return jnp.sum(jnp.tanh(x @ kernel) @ kernel)

    shapes = ones(5, 5), ones(3, 5)
    gradient = jax.value_and_grad(loss, argnums=(0, 1))
    assert flops(gradient, *shapes) == pytest.approx(training_flops(loss, *shapes), rel=1e-9)


def test_convolutions():
    convolve = lambda x, k: jax.lax.conv_general_dilated(  # noqa: E731
        x, k, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert flops(convolve, ones(2, 9, 9, 3), ones(3, 3, 3, 5)) == 2 * (2 * 4 * 4 * 5) * (3 * 3 * 3)


def test_the_most_expensive_branch_counts():
    def branch(x):
        return jax.lax.cond(x[0, 0] > 0, lambda a: a @ a, lambda a: a @ (a @ a), x)

    assert flops(branch, ones(3, 3)) == 2 * 2 * 27


def test_kernels_count_once_per_block():
    def kernel(a, b, out):
        out[...] = a[...] @ b[...]

    product = pallas.pallas_call(
        kernel,
        out_shape=ones(16, 32),
        grid=(2, 4),
        in_specs=[
            pallas.BlockSpec((8, 24), lambda i, j: (i, 0)),
            pallas.BlockSpec((24, 8), lambda i, j: (0, j)),
        ],
        out_specs=pallas.BlockSpec((8, 8), lambda i, j: (i, j)),
    )
    assert flops(product, ones(16, 24), ones(24, 32)) == 2 * 16 * 24 * 32


def test_a_shard_map_counts_on_all_devices():
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=auto)
    spread = jax.shard_map(
        lambda a, b: a @ b,
        mesh=mesh,
        in_specs=(jax.P("data"), jax.P(None, "tensor")),
        out_specs=jax.P("data", "tensor"),
    )
    assert flops(spread, ones(8, 5), ones(5, 6)) == 2 * 8 * 5 * 6


def test_a_loop_of_unknown_length_is_refused():
    def loop(x):
        return jax.lax.while_loop(lambda a: a.sum() < 9, lambda a: a @ a, x)

    with pytest.raises(ValueError, match="an unknown trip count"):
        flops(loop, ones(3, 3))


def test_an_encoder_agrees_with_the_formula_of_its_layers():
    batch, length, hidden, heads, inner = 2, 13, 12, 3, 20

    def layer(x, query, key, value, output, up, down):
        split = lambda y: y.reshape(batch, length, heads, hidden // heads)  # noqa: E731
        scores = jnp.einsum("blhk,bmhk->bhlm", split(x @ query), split(x @ key))
        mixed = jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), split(x @ value))
        x = x + mixed.reshape(x.shape) @ output
        return x + jax.nn.gelu(x @ up) @ down

    square = ones(hidden, hidden)
    shapes = ones(batch, length, hidden), *[square] * 4, ones(hidden, inner), ones(inner, hidden)
    tokens = batch * length
    expected = tokens * (8 * hidden**2 + 4 * hidden * inner + 4 * length * hidden)
    assert flops(layer, *shapes) == expected


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v4", 275),
        ("TPU v3", 61.5),
        ("TPU v6 lite", 918),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A10G", 70),
        ("Tesla V100-SXM2-16GB", 125),
    ],
)
def test_peaks_are_found_by_the_name_of_the_device(kind, tera):
    assert peak_flops_of_kind(kind) == tera * 1e12


def test_an_unknown_device_has_no_peak():
    assert peak_flops_of_kind("TPU v99") is None
    assert peak_flops_of_kind("NVIDIA GeForce GTX 1080") is None


def test_the_peak_of_a_cpu_is_measured_and_shared_by_its_devices(monkeypatch):
    """With a fake clock: each matmul of 1,536 x 1,536 matrices takes half a second."""
    looks, products = itertools.count(0, 0.2), itertools.count(0, 0.5)
    clock = types.SimpleNamespace(
        monotonic=lambda: next(looks), perf_counter=lambda: next(products)
    )
    monkeypatch.setattr("bertjax.runtime.chips.time", clock)
    assert len(jax.devices()) == 8
    assert peak_flops_per_second(jax.devices(), jnp.float32) == 2 * 1536**3 / 0.5


@pytest.mark.parametrize(
    ("kernel", "backend", "dropout"), [("cudnn", "gpu", 0.0), ("pallas", "cpu", 0.1)]
)
def test_a_kernel_does_not_change_the_flops_of_a_step(kernel, backend, dropout, monkeypatch):
    changes = {"data.phases": (), "data.batch_size": 8, "data.max_seq_length": 128}
    changes |= {"model.attention_probs_dropout_prob": dropout, "model.precision": "bfloat16"}
    config = load_config("configs/bert.py:tiny", changes)
    (phase,) = build.phases(config)
    trainer, rows = dummy.build_trainer(config, phase, build.make_mesh(config, [phase]))
    encoder = with_kernel(trainer.pretrainer.encoder, kernel)
    fused = dataclasses.replace(trainer, pretrainer=trainer.pretrainer.clone(encoder=encoder))
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert fused.flops(rows, (8, 128)) == trainer.flops(rows, (8, 128))
