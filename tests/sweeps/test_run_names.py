"""Names of runs: short forms of the fields that differ."""

import pytest

from bertjax.errors import UserError
from bertjax.sweeps.grid import label, labels, names, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((3e-3, "3e-3"), (0.15, "0.15"), (1e5, "1e5"), (1.5e-4, "1.5e-4"), (123456.0, "123456")),
        *((0.00123, "0.00123"), (5.0, "5"), (0.0, "0"), (-1.0, "-1"), (float("inf"), "inf")),
        *((True, "true"), (None, "none"), (-1, "-1"), (1000, "1000"), ("word", "word")),
        *(((16, 32), "16-32"), ((), "none"), (((9, 128), (1, 512)), "9-128-1-512")),
        *(("runs/my bert/", "my-bert"), (("enwiki/*.gz",), ".gz"), ("a=b,c", "a-b-c")),
    ],
)
def test_values(value, text):
    assert value_text(value) == text
    if isinstance(value, float):
        assert float(text) == value


def test_names_have_only_the_differing_fields_in_their_shortest_form():
    assert names([{"a.rate": 0.1, "seed": 0}, {"a.rate": 0.2, "seed": 0}]) == [
        "rate=0.1",
        "rate=0.2",
    ]
    points = [{"x.mlm.weight": 1, "sbo.weight": 2}, {"x.mlm.weight": 2}, {}]
    assert names(points) == ["mlm.weight=1,sbo.weight=2", "mlm.weight=2", "base"]
    assert names([{"seed": 3}]) == ["seed=3"]
    assert names([{}]) == ["base"]
    assert names([{"name": "post-norm", "a": 1}, {"a": 2}]) == ["post-norm", "a=2"]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([{"a": "x/b"}, {"a": "y/b"}], "runs 1 and 2 are both named 'a=b'"),
        ([{"name": ".."}], "expected letters, digits"),
        ([{"name": 3}], "expected letters, digits"),
        ([{"a": "x" * 200}], "got 202 characters, expected at most 150"),
    ],
)
def test_names_that_are_invalid_folders_are_refused(points, message):
    with pytest.raises(UserError, match=message):
        names(points)


def test_labels_of_clusters():
    assert label("masks", "rate=3e-3,seed=1") == "masks-rate-3e-3-seed-1"
    assert label("0.15", "a") == "run-0-15-a"
    long = [label("masks", f"{'x' * 60}{end}") for end in "ab"]
    assert len(set(long)) == 2
    assert all(len(name) <= 40 for name in long)
    found = labels("masks", ["x=-1", "x=1", "act=GELU", "act=gelu", "seed=1"])
    assert len(set(found.values())) == 5
    assert found["seed=1"] == "masks-seed-1"
    assert found["x=1"].startswith("masks-x-1-")
