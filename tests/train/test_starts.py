"""Records of the starts of a run."""

import json
import sys
import types

import jax
import pytest

from bertjax.train.starts import StartsFile, command, read_starts

BERTJAX = "/site-packages/bertjax/__main__.py"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/bin/bertjax", "prepare", "--input", "a b"], "bertjax prepare --input 'a b'"),
        ([BERTJAX, "pretrain"], "bertjax pretrain"),
        (["train.py", "--fast"], "python train.py --fast"),
        ([""], "python"),
    ],
)
def test_commands(argv, expected):
    assert command(argv) == expected


def test_a_start_is_recorded_after_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [BERTJAX, "pretrain", "--workdir", "runs/bert"])
    for first_step in (0, 7):
        hook = StartsFile(tmp_path)
        hook.on_train_begin(types.SimpleNamespace(first_step=first_step), None, {})
        assert len(read_starts(tmp_path)) == (first_step > 0)
        for step in (1, 2):
            hook.on_metrics(first_step + step, {})
    first, second = read_starts(tmp_path)
    assert (first["first_step"], second["first_step"]) == (0, 7)
    assert first["command"] == "bertjax pretrain --workdir runs/bert"
    assert first["num_devices"] == len(jax.devices())
    assert first["device"] == jax.devices()[0].device_kind


def test_a_start_after_an_incomplete_line_is_recorded(tmp_path):
    (tmp_path / "starts.jsonl").write_text('{"first_step": 0}\n{"first_st')
    hook = StartsFile(tmp_path)
    hook.on_train_begin(types.SimpleNamespace(first_step=7), None, {})
    hook.on_metrics(8, {})
    assert [start["first_step"] for start in read_starts(tmp_path)] == [0, 7]


def test_incomplete_lines_are_skipped(tmp_path):
    assert read_starts(tmp_path) == []
    (tmp_path / "starts.jsonl").write_text(f'{{"comm{json.dumps({"step": 1})}\n{{"step": 2}}\n[]\n')
    assert read_starts(tmp_path) == [{"step": 2}]
