"""Every sweep file in experiments/ has runs that fit its config, and says how to run them."""

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
def test_its_record_says_how_to_run_it(path):
    record = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert record.startswith("Question: ")
    command = re.search(rf"bertjax sweep --config experiments/{path.name}(?::(\w+))?", record)
    spec = f"{path}:{command[1]}" if command[1] else str(path)
    finetunes = "task" in load_config(spec)
    options = {"data": "glue"} if finetunes else {}
    sweep = sweeps_plan.load(spec, [], options)
    assert len(sweep.runs) > 1
    if not finetunes:
        # A run without its metric would have no place in the table.
        assert sweep.metric.split("/")[1] in sweep.config["objectives"]


def test_the_encoders_that_are_asked_are_those_that_are_trained():
    trained, asked = (
        sweeps_plan.load(f"{ROOT}/experiments/{spec}", [], options)
        for spec, options in (
            ("masking_rate.py", {}),
            ("masking_rate_glue.py:rte", {"data": "glue"}),
        )
    )
    folders = {f"runs/masking_rate/{run.name}" for run in trained.runs}
    assert folders == {run.settings["init"] for run in asked.runs if run.name != "untrained"}


def test_folders_of_configs_are_forgotten(monkeypatch):
    """Another checkout's configs/ would otherwise be read as this one's."""

    def of_configs() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == "configs"]

    for name in of_configs():  # what other tests have read stands aside
        monkeypatch.delitem(sys.modules, name)
    sweeps_plan.load(str(FILES[0]), [], {})
    assert not of_configs()
