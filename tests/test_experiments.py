"""Sweep files of experiments/: they load, and their docstrings state question and command."""

import ast
import pathlib
import re
import sys

import pytest

from bertjax.config import load_config
from bertjax.sweeps import plan as sweeps_plan

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted(
    path
    for path in (ROOT / "experiments").glob("*.py")
    if "def get_runs" in path.read_text(encoding="utf-8")
)


def test_there_are_sweeps():
    assert "masking_rate.py" in {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_docstring_has_the_command(path):
    record = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert record.startswith("Question: ")
    command = re.search(rf"bertjax sweep run --config experiments/{path.name}(?::(\w+))?", record)
    spec = f"{path}:{command[1]}" if command[1] else str(path)
    finetunes = "task" in load_config(spec)
    options = {"data": "glue"} if finetunes else {}
    sweep = sweeps_plan.load(spec, [], options)
    assert len(sweep.runs) > 1
    if not finetunes:
        # A run without the metric could not be ranked in the table.
        assert sweep.metric.split("/")[1] in sweep.config["objectives"]


def test_the_fine_tuned_encoders_are_those_of_the_pretraining_sweep():
    pretraining, finetuning = (
        sweeps_plan.load(f"{ROOT}/experiments/{spec}", [], options)
        for spec, options in (
            ("masking_rate.py", {}),
            ("masking_rate_glue.py:rte", {"data": "glue"}),
        )
    )
    folders = {f"runs/masking_rate/{run.name}" for run in pretraining.runs}
    assert folders == {run.settings["init"] for run in finetuning.runs if run.name != "untrained"}


def test_config_modules_are_not_cached(monkeypatch):
    """Cached modules would hide the configs/ of another checkout."""

    def config_modules() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == "configs"]

    for name in config_modules():  # restored after the test
        monkeypatch.delitem(sys.modules, name)
    sweeps_plan.load(str(FILES[0]), [], {})
    assert not config_modules()
