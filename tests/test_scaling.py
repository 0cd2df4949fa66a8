"""experiments/scaling.py: which points, what is kept, what a person reads."""

import importlib.util
import json
import pathlib
import types

import pytest

from bertjax.errors import UserError

NO_COMPILER = importlib.util.find_spec("libtpu") is None
NO_PLOT = importlib.util.find_spec("matplotlib") is None


@pytest.fixture(scope="module")
def scaling(root) -> types.ModuleType:
    path = root / "experiments" / "scaling.py"
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def asked(scaling, tmp_path):
    """What a person asks: up to 4 chips, with 2 sequences each or 6 for all."""
    words = ["--chips", "1", "2", "4", "--per_chip", "2", "--batch_size", "6"]
    words += ["--config", "configs/bert.py:tiny", "--length", "16", "--out", str(tmp_path)]
    return scaling._parser().parse_args(words)


def step(chips: int, batch_size: int) -> dict:
    """As `bertjax plan` says it, of a chip that sends nothing alone and holds five sequences."""
    if batch_size / chips > 5:
        return {"fits": False, "memory": {"needed": 2e9, "there": 1e9}}
    seconds = {"products": 0.002 * batch_size / chips, "memory": 0.001, "collectives": 0.0}
    sent = [{"bytes": 4e6}] * (2 if chips > 1 else 0)
    seconds["collectives"] = 0.003 * len(sent)
    seconds["step"] = seconds["products"] + seconds["collectives"]
    return {
        "fits": True,
        "seconds": seconds,
        "collectives": sent,
        "memory": {"all": 5e8, "there": 1e9},
        "sequences_per_second": batch_size / seconds["step"],
        "model_flops_utilisation": seconds["products"] / seconds["step"],
    }


@pytest.mark.skipif(NO_PLOT, reason="no matplotlib: the extra `report`")
def test_what_was_compiled_is_kept_and_the_rest_is_made(scaling, asked, monkeypatch, capsys):
    compiled = []

    def compile_one(arguments, chips, batch_size):
        if len(compiled) == 3:
            raise UserError("the power went")
        compiled.append((chips, batch_size))
        return step(chips, batch_size)

    monkeypatch.setattr(scaling, "compiled", compile_one)
    with pytest.raises(UserError):
        scaling.run(asked)
    compiled[:] = []
    scaling.run(asked)
    assert compiled == [(2, 6), (4, 8)]  # 6 sequences do not divide over four chips
    lines = capsys.readouterr().out.splitlines()
    drawn = pathlib.Path(asked.out) / "bert_tiny_v5e_16.png"
    assert drawn.read_bytes()[:4] == b"\x89PNG"
    assert "strong        1          6   does not fit: 2 GB" in lines
    assert any(
        line.split() == [*("weak", "4", "8", "10", "8", "0.5", "800", "40.0%", "collectives")]
        for line in lines
    )
    assert any(line.startswith("weak          1") and line.endswith("products") for line in lines)


def test_a_chip_that_is_none(scaling, asked):
    asked.chip = "v9"
    with pytest.raises(UserError, match="no chip 'v9': v4, v5e, v5p, v6e, tpu7x"):
        scaling.run(asked)


@pytest.mark.once
@pytest.mark.skipif(NO_COMPILER, reason="no compiler for TPUs: the extra `tpu`")
def test_a_point_is_what_a_plan_says(scaling, asked):
    asked.override = ["--config.model.vocab_size=97"]
    found = scaling.point(scaling.compiled(asked, 1, 2))
    assert found["fits"]
    assert found["limit"] in scaling.CAUSES.values()
    assert found["bytes_sent"] == 0
    assert json.dumps(found)
    asked.override = ["--config.model.no_such_field=1"]
    with pytest.raises(UserError, match=r"v5e-1: bertjax plan: error: .*no_such_field"):
        scaling.compiled(asked, 1, 2)
