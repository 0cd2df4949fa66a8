"""bertjax evaluate predictions: output, errors and help of the command."""

import contextlib
import io
import json
import re

from bertjax import cli
from bertjax.commands import _task_evaluations
from bertjax.tasks import official


def run_cli(*words) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = cli.main([str(word) for word in words])
    return status, out.getvalue(), errors.getvalue()


def test_one_json_object_is_printed(tmp_path):
    path = tmp_path / "predicted.txt"
    path.write_text("Ann B-PER B-PER\nran O O\n")
    status, out, errors = run_cli("evaluate", "predictions", "conll2003", "--predictions", path)
    assert (status, errors) == (0, "")
    assert json.loads(out)["f1"] == 1.0
    status, again, _ = run_cli(
        "evaluate", "predictions", "conll2003", "--references", path, "--predictions", path
    )
    assert (status, again) == (0, out)


def test_a_user_error_is_one_line(tmp_path):
    status, out, errors = run_cli("evaluate", "predictions", "rase", "--predictions", tmp_path)
    assert (status, out) == (2, "")
    expected = "unknown task 'rase': did you mean 'race'?"
    assert errors == f"bertjax evaluate predictions: error: {expected}\n"


def test_the_help_names_every_task():
    printed = set(re.findall(r"\w+", _task_evaluations._PREDICTIONS))
    assert set(official.SCORERS) <= printed
