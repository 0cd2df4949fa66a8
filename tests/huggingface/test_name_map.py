"""Name maps: arrays are converted between names and layouts of both sides, bit-identically."""

import math

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.huggingface.name_map import (
    ArrayMap,
    Layout,
    conv1d,
    dense,
    norm,
    table,
    to_bertjax,
    to_hf,
    with_layers,
)

MAPS = [
    *dense("stack/query", "layer.{layer}.q"),
    *dense("stack/output", "layer.{layer}.o", inputs=2),
    *norm("norm", "ln"),
    *table("words", "words"),
]
# Two layers of width 3, with 5 heads of width 7: no two axes can be confused.
SHAPES = {
    "stack/query/kernel": (2, 3, 5, 7),
    "stack/query/bias": (2, 5, 7),
    "stack/output/kernel": (2, 5, 7, 3),
    "stack/output/bias": (2, 3),
    "norm/scale": (3,),
    "norm/bias": (3,),
    "words/embedding": (11, 3),
}
HF_SHAPES = {
    **{f"layer.{i}.q.weight": (35, 3) for i in range(2)},
    **{f"layer.{i}.q.bias": (35,) for i in range(2)},
    **{f"layer.{i}.o.weight": (3, 35) for i in range(2)},
    **{f"layer.{i}.o.bias": (3,) for i in range(2)},
    "ln.weight": (3,),
    "ln.bias": (3,),
    "words.weight": (11, 3),
}


def random_arrays(shapes):
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def distinct_arrays(shapes):
    """Arrays whose values are all different."""
    start, arrays = 0, {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        arrays[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    return arrays


def assert_same_bits(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert array.shape == expected[name].shape, name
        assert array.dtype == expected[name].dtype, name
        assert array.tobytes() == expected[name].tobytes(), name


def test_a_kernel_is_transposed_and_its_heads_are_unflattened():
    weight = np.arange(6).reshape(2, 3)  # two outputs of three inputs, as torch has it
    maps = dense("a", "b", bias=False)
    hf = {"b.weight": weight}
    (kernel,) = to_bertjax(maps, hf, {"a/kernel": (3, 2)}, {}, "model").values()
    np.testing.assert_array_equal(kernel, [[0, 3], [1, 4], [2, 5]])
    (heads,) = to_bertjax(maps, hf, {"a/kernel": (3, 2, 1)}, {}, "model").values()
    np.testing.assert_array_equal(heads[:, :, 0], weight.T)
    (back,) = to_hf(maps, {"a/kernel": np.array([[0, 3], [1, 4], [2, 5]])}, {}, "run").values()
    np.testing.assert_array_equal(back, weight)
    assert back.flags.c_contiguous


def test_a_linear_layer_whose_heads_have_an_axis_of_their_own():
    """XLNet's output kernel: [out, heads, width] in transformers, [heads, width, out] here."""
    maps = [ArrayMap("a", "b.{layer}", Layout.LINEAR_HEADS, inputs=2)]
    param = np.arange(2 * 5 * 7 * 3).reshape(2, 5, 7, 3)
    hf = to_hf(maps, {"a": param}, {}, "run")
    assert {name: array.shape for name, array in hf.items()} == {"b.0": (3, 5, 7), "b.1": (3, 5, 7)}
    assert hf["b.1"][2, 4, 6] == param[1, 4, 6, 2]
    np.testing.assert_array_equal(hf["b.0"], param[0].transpose(2, 0, 1))
    back = to_bertjax(maps, hf, {"a": param.shape}, {}, "model")
    np.testing.assert_array_equal(back["a"], param)


def test_both_layouts_compute_the_same_matmul():
    hf = random_arrays(HF_SHAPES)
    params = to_bertjax(MAPS, hf, SHAPES, {}, "model")
    x = np.random.default_rng(1).normal(size=3).astype(np.float32)
    for layer in range(2):
        heads = np.einsum("d,dhk->hk", x, params["stack/query/kernel"][layer])
        heads = heads + params["stack/query/bias"][layer]
        weight, bias = hf[f"layer.{layer}.q.weight"], hf[f"layer.{layer}.q.bias"]
        np.testing.assert_allclose(heads.reshape(-1), weight @ x + bias, rtol=1e-5)
        out = np.einsum("hk,hkd->d", heads, params["stack/output/kernel"][layer])
        weight = hf[f"layer.{layer}.o.weight"]
        np.testing.assert_allclose(out, weight @ heads.reshape(-1), rtol=1e-4)


def test_round_trip_is_bit_equal():
    hf = random_arrays(HF_SHAPES)
    params = to_bertjax(MAPS, hf, SHAPES, {}, "model")
    assert {path: array.shape for path, array in params.items()} == SHAPES
    assert_same_bits(to_hf(MAPS, params, {}, "run"), hf)


def test_arrays_that_do_not_fit_are_listed():
    hf = random_arrays(HF_SHAPES)
    del hf["layer.1.q.bias"]
    hf["ln.weight"] = np.zeros(4)
    hf["adapter"] = np.zeros((2, 2))
    with pytest.raises(UserError) as caught:
        to_bertjax(MAPS, hf, SHAPES, {}, "somewhere/model")
    first, *rows = str(caught.value).splitlines()
    assert first.startswith("somewhere/model: 3 of 12 arrays do not fit")
    assert [row.split() for row in rows] == [
        ["missing", "layer.1.q.bias", "expected", "[35]"],
        ["wrong", "shape", "ln.weight", "got", "[4],", "expected", "[3]"],
        ["unexpected", "adapter", "got", "[2,", "2]"],
    ]


def test_another_number_of_layers_does_not_fit():
    hf = random_arrays(HF_SHAPES | {"layer.2.q.weight": (35, 3)})
    with pytest.raises(UserError, match=r"unexpected   layer\.2\.q\.weight"):
        to_bertjax(MAPS, hf, SHAPES, {}, "model")


def test_long_tables_are_cut():
    with pytest.raises(UserError) as caught:
        to_bertjax([], {f"x{i}": np.zeros(1) for i in range(30)}, {}, {}, "model")
    assert len(str(caught.value).splitlines()) == 22
    assert str(caught.value).endswith("and 10 more")


def test_parameters_without_a_place_in_transformers_are_refused():
    params = {"norm/scale": np.ones(3), "norm/bias": np.ones(3), "gate": np.ones(2)}
    with pytest.raises(UserError, match=r"run: 1 of 3 arrays do not fit.*\n  unexpected   gate"):
        to_hf(norm("norm", "ln"), params, {}, "run")
    with pytest.raises(UserError, match=r"missing      norm/bias"):
        to_hf(norm("norm", "ln"), {"norm/scale": np.ones(3)}, {}, "run")


def test_an_array_without_inputs_keeps_its_shape():
    (same,) = to_hf([ArrayMap("r", "r")], {"r": np.zeros((2, 3, 5))}, {}, "run").values()
    assert same.shape == (2, 3, 5)


def every_third(model):
    return range(0, model["num_hidden_layers"], 3)


def between(model):
    return [n for n in range(model["num_hidden_layers"]) if n % 3]


def after_the_first(model):
    return list(every_third(model))[1:]


def block(path, layer):
    """A block with fused query, key and value (fewer heads for the latter two) and a gated unit."""
    qkv = tuple(f"{path}/attention/{name}" for name in ("query", "key", "value"))
    return [
        *dense(qkv, f"{layer}.attn.Wqkv"),
        *dense(f"{path}/attention/output", f"{layer}.attn.Wo", inputs=2, bias=False),
        *dense((f"{path}/mlp/gate", f"{path}/mlp/input"), f"{layer}.mlp.Wi", bias=False),
        *norm(f"{path}/mlp_norm", f"{layer}.mlp_norm", bias=False),
    ]


LAYER = "model.layers.{layer}"
# Layers 0, 3, 6 are global, the others local; the first one has no attention norm.
GROUPED = [
    *with_layers(block("global", LAYER), every_third),
    *with_layers(norm("global/attn_norm", f"{LAYER}.attn_norm", bias=False), after_the_first),
    *with_layers(block("local", LAYER), between),
    *with_layers(norm("local/attn_norm", f"{LAYER}.attn_norm", bias=False), between),
]
MODEL = {"num_hidden_layers": 8}
# Width 3, 2 query heads and one of keys and values of width 5, feed-forward width 7.
BLOCK_SHAPES = {
    "attention/query/kernel": (3, 2, 5),
    "attention/query/bias": (2, 5),
    "attention/key/kernel": (3, 1, 5),
    "attention/key/bias": (1, 5),
    "attention/value/kernel": (3, 1, 5),
    "attention/value/bias": (1, 5),
    "attention/output/kernel": (2, 5, 3),
    "mlp/gate/kernel": (3, 7),
    "mlp/input/kernel": (3, 7),
    "mlp_norm/scale": (3,),
}
GROUPED_SHAPES = {
    **{f"global/{name}": (3, *shape) for name, shape in BLOCK_SHAPES.items()},
    "global/attn_norm/scale": (2, 3),
    **{f"local/{name}": (5, *shape) for name, shape in BLOCK_SHAPES.items()},
    "local/attn_norm/scale": (5, 3),
}
HF_BLOCK_SHAPES = {
    "attn.Wqkv.weight": (20, 3),
    "attn.Wqkv.bias": (20,),
    "attn.Wo.weight": (3, 10),
    "mlp.Wi.weight": (14, 3),
    "mlp_norm.weight": (3,),
    "attn_norm.weight": (3,),
}
GROUPED_HF_SHAPES = {
    f"model.layers.{n}.{name}": shape
    for n in range(8)
    for name, shape in HF_BLOCK_SHAPES.items()
    if (n, name) != (0, "attn_norm.weight")
}


def test_groups_of_layers_and_fused_linear_weights():
    hf = distinct_arrays(GROUPED_HF_SHAPES)
    params = to_bertjax(GROUPED, hf, GROUPED_SHAPES, MODEL, "model")
    assert {path: array.shape for path, array in params.items()} == GROUPED_SHAPES
    for path, numbers in {"global": (0, 3, 6), "local": (1, 2, 4, 5, 7)}.items():
        for index, number in enumerate(numbers):
            layer = f"model.layers.{number}"
            wqkv, wi = hf[f"{layer}.attn.Wqkv.weight"], hf[f"{layer}.mlp.Wi.weight"]
            query = params[f"{path}/attention/query/kernel"][index]
            np.testing.assert_array_equal(query.reshape(3, 10), wqkv[:10].T)
            key = params[f"{path}/attention/key/kernel"][index, :, 0]
            np.testing.assert_array_equal(key, wqkv[10:15].T)
            value = params[f"{path}/attention/value/bias"][index, 0]
            np.testing.assert_array_equal(value, hf[f"{layer}.attn.Wqkv.bias"][15:])
            np.testing.assert_array_equal(params[f"{path}/mlp/gate/kernel"][index], wi[:7].T)
            np.testing.assert_array_equal(params[f"{path}/mlp/input/kernel"][index], wi[7:].T)
    norms = params["global/attn_norm/scale"]
    np.testing.assert_array_equal(norms, [hf[f"model.layers.{n}.attn_norm.weight"] for n in (3, 6)])


def test_round_trips_of_groups_are_bit_equal():
    hf = random_arrays(GROUPED_HF_SHAPES)
    params = to_bertjax(GROUPED, hf, GROUPED_SHAPES, MODEL, "model")
    assert_same_bits(to_hf(GROUPED, params, MODEL, "run"), hf)
    params = random_arrays(GROUPED_SHAPES)
    hf = to_hf(GROUPED, params, MODEL, "run")
    assert {name: array.shape for name, array in hf.items()} == GROUPED_HF_SHAPES
    assert all(array.flags.c_contiguous for array in hf.values())
    assert_same_bits(to_bertjax(GROUPED, hf, GROUPED_SHAPES, MODEL, "model"), params)


def test_two_layer_axes_share_one_number():
    """Blocks of a period of layers, scanned inside the scan over periods."""
    maps = with_layers(norm("n", "h.{layer}.n", bias=False), lambda _: [[1, 2], [4, 5], [7, 8]])
    param = np.arange(3 * 2 * 5, dtype=np.float32).reshape(3, 2, 5)
    hf = to_hf(maps, {"n/scale": param}, {}, "run")
    assert list(hf) == [f"h.{n}.n.weight" for n in (1, 2, 4, 5, 7, 8)]
    np.testing.assert_array_equal(hf["h.5.n.weight"], param[1, 1])
    assert_same_bits(to_bertjax(maps, hf, {"n/scale": (3, 2, 5)}, {}, "model"), {"n/scale": param})


def test_fused_conv1d():
    """GPT-2's c_attn: [inputs, outputs], with query, key and value one after another."""
    maps = conv1d(("q", "k", "v"), "h.{layer}.c_attn")
    shapes = {f"{name}/kernel": (2, 3, 1, 5) for name in "qkv"}
    shapes |= {f"{name}/bias": (2, 1, 5) for name in "qkv"}
    hf = {f"h.{n}.c_attn.{name}": s for n in range(2) for name, s in (("weight", (3, 15)),)}
    hf = distinct_arrays(hf | {f"h.{n}.c_attn.bias": (15,) for n in range(2)})
    params = to_bertjax(maps, hf, shapes, {}, "model")
    weight = hf["h.1.c_attn.weight"]
    np.testing.assert_array_equal(params["k/kernel"][1, :, 0], weight[:, 5:10])
    np.testing.assert_array_equal(params["v/bias"][0, 0], hf["h.0.c_attn.bias"][10:])
    assert_same_bits(to_hf(maps, params, {}, "run"), hf)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "attn.Wqkv.weight",
            (21, 3),
            r"layers.4.attn.Wqkv.weight  got \[21, 3\], expected \[20, 3\]",
        ),
        (
            "attn.Wqkv.weight",
            (3, 20),
            r"layers.4.attn.Wqkv.weight  got \[3, 20\], expected \[20, 3\]",
        ),
        ("attn.Wqkv.bias", (20, 1), r"layers.4.attn.Wqkv.bias  got \[20, 1\], expected \[20\]"),
        ("mlp.Wi.weight", (13, 3), r"layers.4.mlp.Wi.weight  got \[13, 3\], expected \[14, 3\]"),
    ],
)
def test_fused_arrays_of_another_shape_are_refused(name, shape, message):
    hf = random_arrays(GROUPED_HF_SHAPES | {f"model.layers.4.{name}": shape})
    with pytest.raises(
        UserError, match=rf"model: 1 of 47 arrays do not fit.*\n.* model\.{message}$"
    ):
        to_bertjax(GROUPED, hf, GROUPED_SHAPES, MODEL, "model")


@pytest.mark.parametrize(
    ("path", "shape", "expected"),
    [
        (
            "global/attention/key/kernel",
            (3, 4, 1, 5),
            "[3, 3, 1, 5]",
        ),  # other inputs than the query
        ("local/mlp/input/kernel", (4, 3, 7), "[5, 3, 7]"),  # other layers than the gate
        ("global/attn_norm/scale", (3, 3), "[2, 3]"),  # one layer too many
    ],
)
def test_parameters_of_another_shape_are_refused(path, shape, expected):
    params = random_arrays(GROUPED_SHAPES | {path: shape})
    with pytest.raises(UserError) as caught:
        to_hf(GROUPED, params, MODEL, "run")
    _, *rows = str(caught.value).splitlines()
    assert rows == [f"  wrong shape  {path}  got {list(shape)}, expected {expected}"]


def test_the_missing_norm_of_the_first_layer_is_not_accepted():
    hf = random_arrays(GROUPED_HF_SHAPES | {"model.layers.0.attn_norm.weight": (3,)})
    with pytest.raises(UserError, match=r"unexpected   model.layers.0.attn_norm.weight  got \[3\]"):
        to_bertjax(GROUPED, hf, GROUPED_SHAPES, MODEL, "model")


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (GROUPED[1:], "lacks parameters: global/attention/key/kernel, global/att"),
        (
            [*GROUPED, ArrayMap("foo", "bar")],
            "contains parameters that the model does not have: foo",
        ),
        ([*GROUPED, GROUPED[-1]], "contains parameters twice: local/attn_norm/scale"),
        (
            [*GROUPED[:-1], *with_layers(GROUPED[-1:], lambda _: range(5))],
            "contains model.layers.3.attn_norm.weight twice",
        ),
    ],
)
def test_a_map_that_does_not_fit_the_model_is_refused(maps, message):
    with pytest.raises(ValueError, match=message):
        to_bertjax(maps, random_arrays(GROUPED_HF_SHAPES), GROUPED_SHAPES, MODEL, "model")


def test_presence_of_an_array_in_any_layer():
    in_groups = ArrayMap("a", "h.{layer}.b.{inner}.c")
    assert in_groups.is_in(["x", "h.12.b.3.c"])
    assert not in_groups.is_in(["h.12.b.3.cc", "h.x.b.3.c", "h.1.b.{inner}.c"])
    assert not ArrayMap("a", "h.0.b").is_in(["h.0xb"])
