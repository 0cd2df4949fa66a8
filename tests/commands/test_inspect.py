"""bertjax inspect: descriptions of runs, checkpoints and corpora."""

import json

import jax.numpy as jnp
import pytest

from bertjax.commands import inspect
from bertjax.errors import UserError
from bertjax.runs.workdir import claim, write_summary
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.checkpoint.trees import fingerprint

PARAMS = {
    "encoder": {
        "layer_0": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones((3,))},
        "layer_1": {"kernel": jnp.full((3, 5), 0.5, jnp.bfloat16)},
    },
    "mlm": {"bias": jnp.zeros((5,))},
}
OPTIMIZER = ({"mu": PARAMS}, None)
CONFIG = {
    "num_train_steps": 40,
    "best_metric": "held_out/loss",
    "best_mode": "min",
    "model": {"name": "bert", "hidden_size": 3},
}

SUMMARY = {"status": "complete", "steps": 40, "mlm_loss": 1.5}


@pytest.fixture
def workdir(tmp_path):
    """A run that stopped at step 30 of 40, with its best checkpoint at 20."""
    folder = tmp_path / "run"
    claim(folder, CONFIG).release()
    with Checkpoints(folder, provenance={"corpus": "c" * 64}) as checkpoints:
        for step, loss in ((20, 1.5), (30, 2.5)):
            state = {"params": PARAMS, "opt_state": OPTIMIZER, "step": jnp.int32(step)}
            checkpoints.save(state, step=step, metrics={"held_out/loss": loss})
    lines = [
        {"step": 20, "loss": 3.0},
        {"step": 20, "held_out/loss": 1.5},
        {"step": 30, "loss": 2.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def printed(capsys, *arguments):
    inspect.main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def test_description_of_a_checkpoint(workdir, capsys):
    checkpoint = printed(capsys, workdir / "checkpoints" / "30")
    assert checkpoint["kind"] == "checkpoint"
    assert checkpoint["step"] == 30
    assert checkpoint["parameters"] == 6 + 3 + 15 + 5
    assert checkpoint["parameters_sha256"] == fingerprint(PARAMS)
    assert checkpoint["optimizer_sha256"] == fingerprint(OPTIMIZER)
    assert checkpoint["metrics"] == {"held_out/loss": 2.5}
    assert checkpoint["provenance"] == {"corpus": "c" * 64}
    kernel = checkpoint["arrays"]["params/encoder/layer_1/kernel"]
    assert kernel == {"shape": [3, 5], "dtype": "bfloat16"}
    assert checkpoint["bytes"] > 0


def test_checkpoints_are_selected_by_step_or_rank(workdir, capsys):
    assert printed(capsys, f"{workdir}@20")["step"] == 20
    assert printed(capsys, f"{workdir}@best")["step"] == 20
    with pytest.raises(UserError, match="no checkpoint '25'"):
        inspect.main([f"{workdir}@25"])


def test_description_of_a_run(workdir, capsys):
    run = printed(capsys, workdir)
    assert run["kind"] == "run"
    assert run["status"] == "stopped at step 30 of 40; the same command resumes it"
    assert (run["latest_checkpoint"], run["best_checkpoint"]) == (30, 20)
    assert [entry["step"] for entry in run["checkpoints"]] == [20, 30]
    assert run["last_metrics"] == {"step": 30, "loss": 2.0, "held_out/loss": 1.5}
    assert run["config"] == CONFIG
    assert run["summary"] is None


def test_the_status_of_a_run(workdir, tmp_path, capsys):
    claim(workdir, CONFIG | {"num_train_steps": 40}).release()
    write_summary(workdir, SUMMARY)
    with Checkpoints(workdir) as checkpoints:
        checkpoints.save({"params": PARAMS}, step=40)
    run = printed(capsys, workdir)
    assert run["status"] == "complete"
    assert run["summary"] == SUMMARY
    claim(tmp_path / "fresh", CONFIG).release()
    fresh = printed(capsys, tmp_path / "fresh")
    assert fresh["status"] == "stopped before its first checkpoint, of 40 steps"


def test_the_status_of_a_running_run(tmp_path, root, run_bertjax):
    with claim(tmp_path / "run", CONFIG):
        result = run_bertjax("inspect", tmp_path / "run", "--json")
    assert json.loads(result.stdout)["status"] == "running"


def test_text_output_has_a_tree_of_shapes(workdir, capsys):
    inspect.main([str(workdir / "checkpoints" / "30")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"checkpoint {workdir / 'checkpoints' / '30'}"
    assert "parameters: 29" in lines
    start = lines.index("  params/")
    assert lines[start : start + 8] == [
        "  params/",
        "    encoder/",
        "      layer_0/",
        "        bias  float32 [3]",
        "        kernel  float32 [2, 3]",
        "      layer_1/",
        "        kernel  bfloat16 [3, 5]",
        "    mlm/",
    ]


def test_text_output_describes_a_run(workdir, capsys):
    write_summary(workdir, SUMMARY | {"config": CONFIG})
    inspect.main([str(workdir)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"run {workdir}"
    place = lines.index("checkpoints:")
    assert lines[place + 1].split() == ["step", "held_out/loss"]
    assert ["20", "1.5"] in [line.split()[:2] for line in lines[place + 2 :]]
    fields = [line.split() for line in lines]
    assert fields.count(["num_train_steps:", "40"]) == 1
    assert ["mlm_loss:", "1.5"] in fields
    assert ["hidden_size:", "3"] in fields


def test_a_damaged_checkpoint_is_not_described(workdir):
    (workdir / "checkpoints" / "30" / "checkpoint.json").write_text("{}")
    with pytest.raises(UserError, match=r"30 is damaged \(checkpoint\.json has"):
        inspect.main([str(workdir / "checkpoints" / "30")])


def test_other_folders_are_refused_with_the_expected_kinds(tmp_path):
    (tmp_path / "file").write_text("")
    for path, came in [
        (tmp_path / "nothing", "is missing"),
        (tmp_path / "file", "is a file"),
        (tmp_path, r"no manifest\.json, checkpoint\.json or config\.json in .*"),
    ]:
        with pytest.raises(
            UserError, match=f"{came}: expected the --workdir of a run, a checkpoint"
        ):
            inspect.main([str(path)])


def test_a_corpus_is_described_with_examples_as_text(tmp_path, run_bertjax, capsys):
    text = tmp_path / "text.txt"
    sentences = [f"The number {word} comes here. It is followed by more." for word in WORDS]
    text.write_text("\n\n".join(sentences))
    vocabulary, corpus = tmp_path / "vocabulary", tmp_path / "corpus"
    for command in (
        ["tokenizer", "train", "--input", text, "--vocab_size", 200, "--output", vocabulary],
        ["prepare", "--input", text, "--tokenizer", vocabulary, "--output", corpus],
    ):
        result = run_bertjax(*command)
        assert result.returncode == 0, result.stderr
    described = printed(capsys, corpus, "--examples", 2)
    assert described["kind"] == "corpus"
    assert described["manifest"]["splits"]["train"]["documents"] == len(WORDS)
    assert len(described["examples"]) == 2
    assert any(word in described["examples"][0].split() for word in WORDS)
    inspect.main([str(corpus)])
    assert "  3. " in capsys.readouterr().out


WORDS = tuple(f"word{number}" for number in range(100, 160))


@pytest.mark.parametrize(
    ("summary", "status"),
    [
        ({"status": "complete", "steps": 40, "seeds": 5}, "complete"),
        ({"status": "running", "steps": 40, "seeds": 2}, "stopped; 2 seed(s) finished"),
    ],
)
def test_a_fine_tuning_run_is_complete_when_its_seeds_are(tmp_path, capsys, summary, status):
    """Its checkpoints are deleted at that point."""
    claim(tmp_path, CONFIG).release()
    write_summary(tmp_path, summary)
    assert printed(capsys, tmp_path)["status"].startswith(status)
