"""experiments/scaling.py: which points, what is kept, what the user reads."""

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
    """What the user types: up to 4 chips, with 2 sequences each or 6 for all."""
    return (
        *("--chips", "4", "2", "1", "--per_chip", "2", "--batch_size", "6"),
        *("--config", "configs/bert.py:tiny", "--length", "16", "--out", str(tmp_path)),
    )


@pytest.fixture
def compiled(scaling, monkeypatch):
    """The points that were made, by arithmetic instead of a compiler, and drawn by nobody."""
    made = []

    def point(arguments, asked):
        if asked["batch_size"] == 6 and len(made) == 3:
            raise UserError("the power went")
        made.append((asked["chips"], asked["batch_size"], asked["microbatches"]))
        return numbers(asked["chips"], asked["batch_size"])

    monkeypatch.setattr(scaling, "check", lambda arguments: None)
    monkeypatch.setattr(scaling, "point", point)
    monkeypatch.setattr(scaling, "draw", lambda points, title, path: None)
    return made


def numbers(chips: int, batch_size: int) -> dict:
    """Of a chip that sends nothing alone and holds five sequences."""
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
        "memory_there": 1e9,
        "sequences_per_second": batch_size / seconds["step"],
        "model_flops_utilisation": seconds["matmuls"] / seconds["step"],
    }


def test_what_was_compiled_is_kept_and_the_rest_is_made(scaling, words, compiled, capsys):
    with pytest.raises(UserError, match="the power went"):
        scaling.run(words)
    assert compiled == [(1, 2, 1), (2, 4, 1), (4, 8, 1)]
    compiled.clear()
    scaling.run(words)
    assert compiled == [(1, 6, 3), (2, 6, 3)]  # 6 sequences do not divide over four chips
    lines = capsys.readouterr().out.splitlines()
    assert "strong        1          6   does not fit: 2 GB" in lines
    assert [*("weak", "4", "8", "9", "8", "4", "0.5", "889", "44.4%", "collectives")] in [
        line.split() for line in lines
    ]
    assert any(line.startswith("weak          1") and line.endswith("matmuls") for line in lines)


def test_only_what_is_asked_is_shown(scaling, words, compiled, capsys):
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
        {"scaling": name, "chips": chips, "batch_size": each, **numbers(chips, each)}
        for name, chips, each in (("weak", 1, 2), ("weak", 4, 8), ("strong", 1, 6))
    ]
    scaling.draw(points, "BERT", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("more", "output"),
    [
        (("--chip", "v9"), "no chip 'v9': known: tpu7x, v4, v5e, v5p, v6e"),
        (("--chip", "v6"), "no chip 'v6': did you mean 'v6e'"),
        (("--chips", "0"), "--chips: expected 1 or more"),
        (("--per_chip", "0"), "--per_chip: expected 1 or more"),
        (("--batch_size", "-1"), "--batch_size: expected 1 or more"),
    ],
)
def test_what_is_wrong_is_one_line(scaling, words, more, output):
    with pytest.raises(UserError, match=output):
        scaling.run([*words, *more])


def test_a_point_is_what_a_plan_says(scaling, words, tpu_compiler):
    arguments = scaling._parser().parse_args(words)
    asked = {"chips": 1, "batch_size": 2, "microbatches": 2}
    asked |= {"overrides": {"model.vocab_size": "97"}}
    found = scaling.point(arguments, asked)
    assert found["fits"]
    assert found["bytes_sent"] == 0
    assert scaling.limit(found["seconds"]) in scaling.CAUSES.values()
    assert json.dumps(found)
    asked["overrides"] = {"model.no_such_field": "1"}
    with pytest.raises(UserError, match="no_such_field"):
        scaling.point(arguments, asked)
