"""What a person types, from a text file to a score, each command in a process of its own."""

import json
import pathlib
import pydoc_data.topics
import shutil
import signal
import subprocess
import time

import pytest

STEPS = 6
SMALL = [
    "--config.model.vocab_size=400",
    "--config.model.num_hidden_layers=1",
    "--config.model.hidden_size=24",
    "--config.model.num_attention_heads=3",
    "--config.model.intermediate_size=40",
    "--config.data.phases=()",
    "--config.data.max_seq_length=32",
    "--config.data.batch_size=8",
    f"--config.num_train_steps={STEPS}",
    "--config.optimizer.warmup_steps=2",
    "--config.log_every=2",
    "--config.eval_every=3",
    "--config.eval_examples=16",
    "--config.checkpoint_every=3",
]


def write_text(folder: pathlib.Path) -> None:
    """English that comes with every Python: one file, a blank line between documents."""
    folder.mkdir()
    topics = sorted(pydoc_data.topics.topics.items())[:30]
    documents = [text.replace("\n\n", "\n").strip() for _, text in topics]
    (folder / "topics.txt").write_text("\n\n".join(documents), encoding="utf-8")


def write_cola(folder: pathlib.Path) -> None:
    """A few sentences in the layout of CoLA: no header; source, label, mark, sentence."""
    (folder / "CoLA").mkdir(parents=True)
    for name, count in (("train", 24), ("dev", 11)):
        rows = [f"x\t{i % 2}\t\tThe value {'is' if i % 2 else 'are'} {i} ." for i in range(count)]
        (folder / "CoLA" / f"{name}.tsv").write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory, run_bertjax) -> pathlib.Path:
    """A folder with text, and what the first three commands made of it."""
    home = tmp_path_factory.mktemp("story")
    write_text(home / "text")
    write_cola(home / "glue")
    tokenizer = ["--input", home / "text/*.txt", "--vocab_size", 400, "--out", home / "vocab"]
    succeeds(run_bertjax("tokenizer", "--kind", "wordpiece", *tokenizer))
    prepare = ["--input", home / "text/*.txt", "--tokenizer", home / "vocab"]
    prepare += ["--validation_fraction", 0.2, "--workers", 1, "--out", home / "corpus"]
    succeeds(run_bertjax("prepare", *prepare))
    result = run_bertjax(*pretrain(home, home / "run"))
    succeeds(result)
    (home / "pretrain.txt").write_text(result.stdout)
    return home


def pretrain(home: pathlib.Path, workdir: pathlib.Path, *overrides: str) -> list[str]:
    """The words of a small pretraining command."""
    corpus = f"--config.data.corpus={home / 'corpus'}"
    config = ["--config", "configs/bert.py:tiny", "--workdir", str(workdir)]
    return ["pretrain", *config, corpus, *SMALL, *overrides]


def finetune(home: pathlib.Path, workdir: pathlib.Path, *overrides: str) -> list[str]:
    """The words of a small fine-tuning command."""
    config = ["--config", "configs/glue.py:cola,tiny", "--init", str(home / "run")]
    return [
        "finetune",
        *config,
        "--data",
        str(home / "glue"),
        "--workdir",
        str(workdir),
        *overrides,
    ]


def succeeds(result: subprocess.CompletedProcess) -> None:
    assert result.returncode == 0, result.stdout + result.stderr


def fails(result: subprocess.CompletedProcess, *wanted: str) -> str:
    """Checks for exit status 2 and one line of error that holds what is wanted; returns the line."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    *_, line = result.stderr.splitlines()
    assert line.startswith("bertjax ")
    assert ": error: " in line
    assert result.stderr.count(": error: ") == 1
    for part in wanted:
        assert part in line, line
    return line


def summary_of(run: pathlib.Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def checkpoint_of(run_bertjax, run: pathlib.Path, step: int = STEPS) -> dict:
    result = run_bertjax("inspect", f"{run}@{step}", "--json")
    succeeds(result)
    return json.loads(result.stdout)


def test_pretraining_tells_what_came_of_it(home):
    summary = summary_of(home / "run")
    assert summary["steps"] == STEPS
    assert summary["tokens"] == STEPS * 8 * 32
    assert 0 < summary["unigram_loss"] < 7
    assert 0 <= summary["mlm_accuracy"] <= 1
    told = (home / "pretrain.txt").read_text()
    assert "word frequencies alone" in told
    assert "[MASK]" in told
    assert "bertjax finetune --config" in told
    lines = (home / "run" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in lines} >= {2, 3, 4, 6}


def test_a_finished_run_says_so_and_can_be_extended(home, run_bertjax, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    again = run_bertjax(*pretrain(home, tmp_path / "run"))
    succeeds(again)
    assert "complete" in again.stdout
    assert f"--config.num_train_steps={2 * STEPS}" in again.stdout
    assert summary_of(tmp_path / "run") == summary_of(home / "run")
    succeeds(run_bertjax(*pretrain(home, tmp_path / "run", "--config.num_train_steps=8")))
    assert summary_of(tmp_path / "run")["steps"] == 8


def test_inspect_knows_runs_checkpoints_and_corpora(home, run_bertjax):
    for what in ("run", "corpus"):
        result = run_bertjax("inspect", home / what)
        succeeds(result)
        assert result.stdout.strip()
    checkpoint = checkpoint_of(run_bertjax, home / "run")
    assert checkpoint["step"] == STEPS
    assert len(checkpoint["parameters_sha256"]) == 64
    fails(run_bertjax("inspect", home / "text"), str(home / "text"))


LONG = ["--config.num_train_steps=1200", "--config.checkpoint_every=100", "--config.eval_every=600"]


def test_stopped_and_killed_it_ends_with_the_same_parameters(
    home, run_bertjax, start_bertjax, tmp_path
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    succeeds(run_bertjax(*pretrain(home, whole, *LONG)))

    process = start_bertjax(*pretrain(home, broken, *LONG))
    wait_for_checkpoint(process, broken, after=0)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert "the same command goes on from there" in errors

    process = start_bertjax(*pretrain(home, broken, *LONG))
    wait_for_checkpoint(process, broken, after=newest_step(broken))
    process.kill()
    process.communicate(timeout=300)

    succeeds(run_bertjax(*pretrain(home, broken, *LONG)))
    expected, found = (checkpoint_of(run_bertjax, run, 1200) for run in (whole, broken))
    assert found["parameters_sha256"] == expected["parameters_sha256"]
    assert found["optimizer_sha256"] == expected["optimizer_sha256"]
    assert summary_of(broken)["mlm_loss"] == summary_of(whole)["mlm_loss"]


def newest_step(run: pathlib.Path) -> int:
    return max((int(p.name) for p in run.glob("checkpoints/[0-9]*") if p.name.isdigit()), default=0)


def wait_for_checkpoint(process: subprocess.Popen, run: pathlib.Path, after: int) -> None:
    """Returns once the process has saved a checkpoint of a later step, long before its end."""
    deadline = time.monotonic() + 300
    while newest_step(run) <= after and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_two_devices_learn_what_one_learns(home, run_bertjax, tmp_path):
    succeeds(run_bertjax(*pretrain(home, tmp_path / "run"), devices=2))
    one, two = summary_of(home / "run"), summary_of(tmp_path / "run")
    assert two["mlm_loss"] == pytest.approx(one["mlm_loss"], rel=1e-4)


def test_finetuning_ends_in_results(home, run_bertjax, tmp_path):
    result = run_bertjax(*finetune(home, tmp_path / "cola", "--seeds", "2"))
    succeeds(result)
    results = json.loads((tmp_path / "cola" / "results.json").read_text())
    assert len(results["seeds"]) == 2
    assert "matthews" in json.dumps(results)
    predictions = list((tmp_path / "cola").rglob("CoLA.tsv"))
    assert predictions
    assert predictions[0].read_text().startswith("index\tprediction\n")


def test_text_is_enough_for_a_run(home, run_bertjax, tmp_path):
    """Steps 1 and 2 happen by themselves, once."""
    words = pretrain(home, tmp_path / "run")
    words = [word for word in words if not word.startswith("--config.data.corpus")]
    words += [
        f"--config.data.input={home}/text/*.txt",
        "--config.data.validation_fraction=0.2",
        "--config.tokenizer.vocab_size=400",
        f"--config.data.cache={tmp_path / 'cache'}",
    ]
    succeeds(run_bertjax(*words))
    assert summary_of(tmp_path / "run")["steps"] == STEPS
    assert any((tmp_path / "cache").iterdir())
