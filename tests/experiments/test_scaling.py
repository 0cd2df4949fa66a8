"""experiments/scaling.py: the points of both scalings, stored results, table and plot."""

import json
import types

import pytest

from bertjax.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scaling(load_script) -> types.ModuleType:
    return load_script("experiments/scaling.py")


@pytest.fixture
def words(tmp_path):
    """A command line: up to 4 chips, 2 sequences per chip or 6 in total."""
    return (
        *("--chips", "4", "2", "1", "--per_chip", "2", "--batch_size", "6"),
        *("--config", "configs/bert.py:tiny", "--length", "16", "--out", str(tmp_path)),
    )


@pytest.fixture
def compiled(scaling, monkeypatch):
    """The compiled points, with a fake compiler and without plots."""
    points = []

    def point(arguments, spec):
        if spec["batch_size"] == 6 and len(points) == 3:
            raise UserError("compiler stopped")
        points.append((spec["chips"], spec["batch_size"], spec["microbatches"]))
        return results(spec["chips"], spec["batch_size"])

    monkeypatch.setattr(scaling, "check", lambda arguments: None)
    monkeypatch.setattr(scaling, "point", point)
    monkeypatch.setattr(scaling, "plot", lambda points, title, path: None)
    return points


def results(chips: int, batch_size: int) -> dict:
    """Results for chips with memory for five sequences; a single chip sends nothing."""
    if batch_size / chips > 5:
        return {"fits": False, "memory_needed": 2e9}
    sent = 8e6 if chips > 1 else 0
    seconds = {"matmuls": 0.002 * batch_size / chips, "memory": 0.001, "collectives": sent / 1.6e9}
    seconds["step"] = seconds["matmuls"] + seconds["collectives"]
    return {
        "fits": True,
        "seconds": seconds,
        "bytes_sent": sent,
        "bytes_moved": 4e9,
        "memory": 5e8,
        "memory_capacity": 1e9,
        "sequences_per_second": batch_size / seconds["step"],
        "model_flops_utilisation": seconds["matmuls"] / seconds["step"],
    }


def test_compiled_points_are_stored_and_missing_ones_compiled(scaling, words, compiled, capsys):
    with pytest.raises(UserError, match="compiler stopped"):
        scaling.run(words)
    assert compiled == [(1, 2, 1), (2, 4, 1), (4, 8, 1)]
    compiled.clear()
    scaling.run(words)
    assert compiled == [(1, 6, 3), (2, 6, 3)]  # 6 sequences are not divisible by four chips
    lines = capsys.readouterr().out.splitlines()
    assert "strong        1          6   does not fit: 2 GB" in lines
    assert [*("weak", "4", "8", "9", "8", "4", "0.5", "889", "44.4%", "collectives")] in [
        line.split() for line in lines
    ]
    assert any(line.startswith("weak          1") and line.endswith("matmuls") for line in lines)


def test_only_requested_points_are_printed(scaling, words, compiled, capsys):
    words += ("--batch_size", "5")
    scaling.run([*words, "--chips", "1", "2"])
    scaling.run([*words, "--chips", "1", "--config.mesh.shard_optimizer=true"])
    assert compiled == [(1, 2, 1), (2, 4, 1), (1, 5, 5), (1, 2, 1), (1, 5, 5)]
    capsys.readouterr()
    scaling.run([*words, "--chips", "2"])
    _, line, *_ = capsys.readouterr().out.splitlines()
    assert line.split()[:3] == ["weak", "2", "4"]
    assert len(compiled) == 5


def test_the_plot_is_a_picture(scaling, tmp_path, report):
    points = [
        {"scaling": name, "chips": chips, "batch_size": each, **results(chips, each)}
        for name, chips, each in (("weak", 1, 2), ("weak", 4, 8), ("strong", 1, 6))
    ]
    scaling.plot(points, "BERT", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("more", "output"),
    [
        (("--chip", "v9"), "--chip: unknown 'v9'; known: tpu7x, v4, v5e, v5p, v6e"),
        (("--chip", "v6"), "--chip: unknown 'v6'; did you mean 'v6e'"),
        (("--chips", "0"), "--chips: got 0, expected an integer >= 1"),
        (("--per_chip", "0"), "--per_chip: got 0, expected an integer >= 1"),
        (("--batch_size", "-1"), "--batch_size: got -1, expected an integer >= 1"),
    ],
)
def test_a_user_error_is_one_line(scaling, words, more, output):
    with pytest.raises(UserError, match=output):
        scaling.run([*words, *more])


def test_a_point_is_compiled_by_the_planner(scaling, words, tpu_compiler):
    arguments = scaling._parser().parse_args(words)
    spec = {"chips": 1, "batch_size": 2, "microbatches": 2}
    spec |= {"overrides": {"model.vocab_size": "97"}}
    found = scaling.point(arguments, spec)
    assert found["fits"]
    assert found["bytes_sent"] == 0
    assert scaling.limit(found["seconds"]) in scaling.CAUSES.values()
    assert json.dumps(found)
    spec["overrides"] = {"model.no_such_field": "1"}
    with pytest.raises(UserError, match="no_such_field"):
        scaling.point(arguments, spec)
