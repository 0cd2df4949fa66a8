"""Experiment trackers: Weights & Biases and MLflow, as stubs and, if installed, as they are."""

import importlib.util
import json
import sys
import time
import types
import warnings

import pytest

from bertjax import catalog
from bertjax.errors import UserError
from bertjax.train import tracking

FIELDS = {"model.name": "bert", "data.input": (), "optimizer.learning_rate": 1e-3}
START = types.SimpleNamespace(first_step=0)
RECORDS = [(5, {"loss": 2.5}), (5, {"held_out/loss": 3.5, "goodput": 0.5}), (10, {"loss": 1.5})]


def train(name, folder, restored=None):
    """Sends the records of a run; returns the state that its checkpoints hold."""
    (tracker,) = tracking.make([name], folder, FIELDS)
    assert tracker.name == name
    tracker.on_train_begin(START, None, restored or {})
    for step, values in RECORDS:
        tracker.on_record(step, values)
    state = tracker.state_dict()
    tracker.close()
    return json.loads(json.dumps(state))


class FakeError(Exception):
    """The base of the errors of the stub."""


@pytest.fixture
def fake_wandb(monkeypatch):
    """A stub of the package, with the calls that it received."""
    calls = []

    def init(**options):
        if options["project"] == "denied":
            raise FakeError("api_key not configured (no-tty)\nmore")
        calls.append(("init", options))
        return types.SimpleNamespace(
            id=options["id"],
            log=lambda values, step: calls.append((step, values)),
            finish=lambda: calls.append(("finish", {})),
        )

    stub = types.ModuleType("wandb")
    stub.init, stub.Settings = init, lambda **options: options
    stub.errors = types.SimpleNamespace(Error=FakeError)
    monkeypatch.setitem(sys.modules, "wandb", stub)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return calls


def test_records_are_sent_to_one_run(fake_wandb, tmp_path):
    state = train("wandb", tmp_path / "bert")
    (_, options), *records, last = fake_wandb
    assert (options["project"], options["name"]) == ("bertjax", "bert")
    assert options["config"] == FIELDS
    assert (records, last) == (RECORDS, ("finish", {}))
    assert state == {"id": options["id"]}
    assert train("wandb", tmp_path / "bert", state) == state


def test_seeds_are_named_after_their_run(fake_wandb, tmp_path):
    train("wandb", tmp_path / "rte" / "seed_1")
    assert fake_wandb[0][1]["name"] == "rte/seed_1"


def test_runs_have_ids_of_their_own(fake_wandb, tmp_path):
    assert train("wandb", tmp_path / "bert") != train("wandb", tmp_path / "bert")


def test_a_refused_login_is_one_line(fake_wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "denied")
    with pytest.raises(UserError, match=r"^config.trackers: wandb: api_key not .*; log in with"):
        train("wandb", tmp_path)


def test_a_failure_of_the_tracker_does_not_end_training(fake_wandb, tmp_path, capsys, monkeypatch):
    init, logged = sys.modules["wandb"].init, []

    def log(values, step):
        logged.append(step)
        raise BrokenPipeError("Broken pipe\nmore")

    def init_broken(**options):
        run = init(**options)
        run.log = log
        return run

    monkeypatch.setattr(sys.modules["wandb"], "init", init_broken)
    state = train("wandb", tmp_path)
    assert logged == [5], "the next requests would fail as slowly"
    assert fake_wandb[0][1]["id"] == state["id"]
    assert capsys.readouterr().err == (
        "warning: config.trackers: wandb: Broken pipe; nothing more is sent until the run is "
        "resumed; metrics.jsonl has all metrics\n"
    )


def test_only_the_first_host_sends(fake_wandb, tmp_path, monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    assert train("wandb", tmp_path) == {}
    assert fake_wandb == []


def test_names_of_trackers(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else name)
    violation = tracking.TrackerName().violation
    assert violation("mlflow") is None
    assert violation("wandb") == (
        "expected a tracker whose package is installed (pip install 'bertjax[wandb]')"
    )
    assert violation("comet").startswith("expected one of 'mlflow', 'wandb'")


def test_every_tracker_has_an_extra(root):
    text = (root / "pyproject.toml").read_text()
    for name in catalog.names("train/trackers"):
        assert f'\n{name} = ["{name}>=' in text


@pytest.mark.slow
def test_offline_files_of_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package
        train("wandb", tmp_path)
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    # The service of the package writes the file, on a busy machine also after the end of the run.
    deadline = time.monotonic() + 60
    while b"held_out/loss" not in (content := log.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"held_out/loss" in content
    assert b"optimizer.learning_rate" in content


@pytest.mark.slow
def test_a_folder_of_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="the extra mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # without its server, as in CI
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package
        import mlflow

        state = train("mlflow", tmp_path / "bert")
        assert train("mlflow", tmp_path / "bert", state) == state
        client = mlflow.MlflowClient()
        found = client.get_run(state["id"])
        losses = client.get_metric_history(state["id"], "loss")
    assert (found.info.run_name, found.info.status) == ("bert", "FINISHED")
    assert found.data.params == {name: str(value) for name, value in FIELDS.items()}
    assert found.data.metrics == {"loss": 1.5, "held_out/loss": 3.5, "goodput": 0.5}
    assert sorted((metric.step, metric.value) for metric in losses)[::2] == [(5, 2.5), (10, 1.5)]
