"""Arrays change their names and shapes, and come back to the last bit."""

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.huggingface.name_map import Pair, dense, norm, table, to_ours, to_theirs

PAIRS = [
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
THEIR_SHAPES = {
    **{f"layer.{i}.q.weight": (35, 3) for i in range(2)},
    **{f"layer.{i}.q.bias": (35,) for i in range(2)},
    **{f"layer.{i}.o.weight": (3, 35) for i in range(2)},
    **{f"layer.{i}.o.bias": (3,) for i in range(2)},
    "ln.weight": (3,),
    "ln.bias": (3,),
    "words.weight": (11, 3),
}


def draws(shapes):
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_kernel_is_turned_and_its_heads_are_unfolded():
    weight = np.arange(6).reshape(2, 3)  # two outputs of three inputs, as torch has it
    (kernel, _) = dense("a", "b")
    np.testing.assert_array_equal(kernel.to_ours([weight], (3, 2)), [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(kernel.to_ours([weight], (3, 2, 1))[:, :, 0], weight.T)
    (back,) = kernel.to_theirs(np.array([[0, 3], [1, 4], [2, 5]]))
    np.testing.assert_array_equal(back, weight)
    assert back.flags.c_contiguous


def test_a_map_whose_heads_theirs_keeps_apart():
    """XLNet's output map: [out, heads, width] of theirs is [heads, width, out] of ours."""
    pair = Pair("a", "b.{layer}", inputs=2, apart=True)
    ours = np.arange(2 * 5 * 7 * 3).reshape(2, 5, 7, 3)
    theirs = pair.to_theirs(ours)
    assert (
        [array.shape for array in theirs] == [pair.their_shape(ours.shape)] * 2 == [(3, 5, 7)] * 2
    )
    assert theirs[1][2, 4, 6] == ours[1, 4, 6, 2]
    np.testing.assert_array_equal(theirs[0], ours[0].transpose(2, 0, 1))
    np.testing.assert_array_equal(pair.to_ours(theirs, ours.shape), ours)


def test_both_products_are_the_same():
    theirs = draws(THEIR_SHAPES)
    ours = to_ours(PAIRS, theirs, SHAPES, "model")
    x = np.random.default_rng(1).normal(size=3).astype(np.float32)
    for layer in range(2):
        heads = np.einsum("d,dhk->hk", x, ours["stack/query/kernel"][layer])
        heads = heads + ours["stack/query/bias"][layer]
        weight, bias = theirs[f"layer.{layer}.q.weight"], theirs[f"layer.{layer}.q.bias"]
        np.testing.assert_allclose(heads.reshape(-1), weight @ x + bias, rtol=1e-5)
        out = np.einsum("hk,hkd->d", heads, ours["stack/output/kernel"][layer])
        weight = theirs[f"layer.{layer}.o.weight"]
        np.testing.assert_allclose(out, weight @ heads.reshape(-1), rtol=1e-4)


def test_there_and_back_is_the_same():
    theirs = draws(THEIR_SHAPES)
    ours = to_ours(PAIRS, theirs, SHAPES, "model")
    assert {name: array.shape for name, array in ours.items()} == SHAPES
    back = to_theirs(PAIRS, ours, "run")
    assert back.keys() == theirs.keys()
    for name, array in back.items():
        assert array.tobytes() == theirs[name].tobytes()
        assert array.shape == theirs[name].shape


def test_what_does_not_fit_is_a_table():
    theirs = draws(THEIR_SHAPES)
    del theirs["layer.1.q.bias"]
    theirs["ln.weight"] = np.zeros(4)
    theirs["adapter"] = np.zeros((2, 2))
    with pytest.raises(UserError) as caught:
        to_ours(PAIRS, theirs, SHAPES, "somewhere/model")
    first, *rows = str(caught.value).splitlines()
    assert first.startswith("somewhere/model: 3 of 12 arrays do not fit")
    assert [row.split() for row in rows] == [
        ["missing", "layer.1.q.bias", "expected", "[35]"],
        ["wrong", "shape", "ln.weight", "came", "[4],", "expected", "[3]"],
        ["unexpected", "adapter", "came", "[2,", "2]"],
    ]


def test_another_number_of_layers_does_not_fit():
    theirs = draws(THEIR_SHAPES | {"layer.2.q.weight": (35, 3)})
    with pytest.raises(UserError, match=r"unexpected   layer\.2\.q\.weight"):
        to_ours(PAIRS, theirs, SHAPES, "model")


def test_long_tables_are_cut():
    with pytest.raises(UserError) as caught:
        to_ours([], {f"x{i}": np.zeros(1) for i in range(30)}, {}, "model")
    assert len(str(caught.value).splitlines()) == 22
    assert str(caught.value).endswith("and 10 more")


def test_what_theirs_has_no_place_for_does_not_leave():
    ours = {"norm/scale": np.ones(3), "norm/bias": np.ones(3), "gate": np.ones(2)}
    with pytest.raises(UserError, match=r"run: 1 of 3 arrays do not fit.*\n  unexpected   gate"):
        to_theirs(norm("norm", "ln"), ours, "run")
    with pytest.raises(UserError, match=r"missing      norm/bias"):
        to_theirs(norm("norm", "ln"), {"norm/scale": np.ones(3)}, "run")


def test_an_array_without_inputs_keeps_its_shape():
    pair = Pair("r", "r")
    (same,) = pair.to_theirs(np.zeros((2, 3, 5)))
    assert same.shape == (2, 3, 5)
