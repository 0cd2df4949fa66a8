"""tools/compare_peers.py: steps of the same model, ratios, and the comparison with stored ones."""

import contextlib
import dataclasses
import importlib.util
import json

import pytest

COMPILED = {"huggingface_compiled", "tuned_pytorch"}
"""Peers that compile for minutes."""


@pytest.fixture
def tool(load_script, root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "tools"))
    return load_script("tools/compare_peers.py")


def measurement(**ratios):
    rows = [{"shape": "mini", "peer": peer, "ratio": ratio} for peer, ratio in ratios.items()]
    return {"rows": rows}


def test_a_ratio_is_a_regression_beyond_the_tolerance(tool):
    stored = measurement(huggingface=5.0, tuned_pytorch=1.3, bare_jax=1.0)
    measured = measurement(huggingface=4.6, tuned_pytorch=1.1, new=0.1)
    assert tool.regressions(measured, stored, 0.1) == ["mini, tuned_pytorch: 1.10x, stored 1.30x"]


class FakeWorkers:
    """Times of three rounds, on a machine that is slower in some of them."""

    def __init__(self, warm_up_seconds):
        times = {"huggingface": [2.0, 4.0, 9.0], "bare_jax": [1.0, 2.0, 3.0]}
        self._times = {
            peer: iter(own) for peer, own in (times | {"bertjax": [1.0, 4.0, 3.0]}).items()
        }

    def seconds_per_step(self, peer, shape, steps):
        return {"seconds": next(self._times[peer]), "parameters": 7}

    def close(self):
        pass


def test_ratios_are_of_the_same_round(tool, monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib: bertjax[plots]")
    monkeypatch.setattr(tool, "Workers", FakeWorkers)
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(tool, "_machine", lambda: {"processor": "a processor"})
    output = tmp_path / "peers.json"
    words = ["compare_peers.py", "--shapes", "mini", "--rounds", "3", "--output", str(output)]
    monkeypatch.setattr("sys.argv", [*words, "--peers", "huggingface", "bare_jax"])
    tool.main()
    rows = {row["peer"]: row for row in json.loads(output.read_text())["rows"]}
    assert rows["huggingface"]["ratio"] == pytest.approx(2.0)
    assert rows["bare_jax"]["ratio"] == pytest.approx(1.0)
    assert rows["bertjax"]["seconds"] == [1.0, 4.0, 3.0]
    assert (rows["bertjax"]["median"], rows["bertjax"]["minimum"]) == (3.0, 1.0)
    assert output.with_suffix(".png").stat().st_size > 1000
    printed = capsys.readouterr()
    assert "mini         huggingface" in printed.out
    assert "mini, round 3, s: huggingface 9.000" in printed.err


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--rounds", "0"], "--rounds: got 0, expected an integer >= 1"),
        (["--check", "nowhere.json"], "--check nowhere.json: .*; expected a file that --output"),
        (["--precision", "bfloat16"], "--precision: bare_jax has float32 only"),
        (["--task", "generation", "--precision", "bfloat16"], "generation is timed in float32"),
        (["--task", "causal_lm", "--shapes", "base"], "got base, expected, for causal_lm, mini"),
    ],
)
def test_user_errors_are_one_line(tool, options, printed, monkeypatch):
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr("sys.argv", ["compare_peers.py", *options])
    with pytest.raises(SystemExit, match=printed):
        tool.main()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["mlm", "causal_lm", "finetuning", "generation"])
def test_the_peers_have_the_same_model(task, tool, monkeypatch, xla_flags):
    if not all(map(importlib.util.find_spec, tool.TASKS[task].packages)):
        pytest.skip("peers need packages of the group test-all")
    monkeypatch.setenv("XLA_FLAGS", xla_flags(1))
    fields = {"width": 8, "layers": 1, "heads": 2, "batch_size": 2, "length": 16, "predictions": 3}
    fields |= {"generation": {"new_tokens": 4}, "finetuning": {"num_steps": 2}}.get(task, {})
    shape = dataclasses.replace(next(iter(tool.TASKS[task].shapes)), **fields)
    uncompiled = [peer for peer in tool.TASKS[task].peers if peer not in COMPILED]
    with contextlib.closing(tool.Workers()) as workers:
        found = [workers.seconds_per_step(peer, shape, 1) for peer in uncompiled]
    assert all(answer["seconds"] > 0 for answer in found)
    # Some have 512 positions instead of 16, and one or two segments.
    sizes = [answer["parameters"] for answer in found]
    assert max(sizes) < min(sizes) + 520 * shape.width
