"""Splitting and stacking the parameters of layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.inference.layer_params import split_layers, stack_layers

cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="layers are split on CPUs")


@cpu
def test_layers_are_split_and_stacked_again():
    kernel, bias = np.arange(60.0).reshape(3, 4, 5), np.arange(15.0).reshape(3, 5)
    params = {"encoder": {"layers": {"output": {"kernel": kernel, "bias": bias}}, "norm": bias}}
    split = split_layers(params)
    assert [part.shape for part in split["encoder"]["layers"]["output"]["bias"]] == [(5,)] * 3
    stacked = jax.jit(stack_layers)(split)
    assert jax.tree.structure(stacked) == jax.tree.structure(params)
    for found, expected in zip(jax.tree.leaves(stacked), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(found, expected)


@cpu
def test_a_compiled_layer_reads_its_part_without_a_copy():
    def apply(params, x):
        kernels = stack_layers(params)["layers"]["kernel"]
        return jax.lax.scan(lambda x, kernel: (x @ kernel, None), x, kernels, unroll=3)[0]

    params = split_layers({"layers": {"kernel": np.ones((3, 64, 64), np.float32)}})
    program = jax.jit(apply).lower(params, jnp.ones((1, 64))).compile().as_text()
    assert program.count(" dot(") == 3
    assert " concatenate(" not in program
    assert " slice(" not in program
