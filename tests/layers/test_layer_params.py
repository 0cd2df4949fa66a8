"""Splitting and stacking the parameters of layers."""

import jax
import numpy as np

from bertjax.layers.stack import split_layers, stack_layers

ON_CPU = jax.default_backend() == "cpu"


def test_layers_are_split_on_cpus_and_stacked_again():
    kernel, bias = np.arange(60.0).reshape(3, 4, 5), np.arange(15.0).reshape(3, 5)
    params = {"encoder": {"layers": {"output": {"kernel": kernel, "bias": bias}}, "norm": bias}}
    split = split_layers(params)
    shapes = [leaf.shape for leaf in jax.tree.leaves(split["encoder"]["layers"])]
    assert shapes == ([(5,)] * 3 + [(4, 5)] * 3 if ON_CPU else [(3, 5), (3, 4, 5)])
    stacked = jax.jit(stack_layers)(split)
    assert jax.tree.structure(stacked) == jax.tree.structure(params)
    for found, expected in zip(jax.tree.leaves(stacked), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_compiled_layer_reads_its_part_and_on_cpus_without_a_copy():
    def apply(params, x):
        kernels = stack_layers(params)["layers"]["kernel"]
        return jax.lax.scan(lambda x, kernel: (x @ kernel, None), x, kernels, unroll=3)[0]

    kernels = np.random.default_rng(0).normal(size=(3, 64, 64)).astype(np.float32)
    x = np.ones((1, 64), np.float32)
    params = split_layers({"layers": {"kernel": kernels}})
    compiled = jax.jit(apply).lower(params, x).compile()
    expected = x @ kernels[0] @ kernels[1] @ kernels[2]
    np.testing.assert_allclose(compiled(params, x), expected, atol=1e-3 * np.abs(expected).max())
    if ON_CPU:
        program = compiled.as_text()
        assert program.count(" dot(") == 3
        assert " concatenate(" not in program
        assert " slice(" not in program
