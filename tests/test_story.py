"""The commands of the README from a text file to scores, each in a separate process.

Pretraining runs on eight devices, all that follows on one.
"""

import gzip
import json
import pathlib
import pydoc_data.topics
import re
import shutil
import subprocess
import sys

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
    "--config.tensorboard=True",
]


def write_text(folder: pathlib.Path) -> None:
    """Write text of Python's own help: one file, a blank line between documents."""
    folder.mkdir()
    topics = sorted(pydoc_data.topics.topics.items())[:30]
    documents = [text.replace("\n\n", "\n").strip() for _, text in topics]
    (folder / "topics.txt").write_text("\n\n".join(documents), encoding="utf-8")


def write_cola(folder: pathlib.Path) -> None:
    """Write a few sentences in the layout of CoLA: source, label, mark, sentence; no header."""
    (folder / "CoLA").mkdir(parents=True)
    for name, count in (("train", 24), ("dev", 11)):
        rows = [f"x\t{i % 2}\t\tThe value {'is' if i % 2 else 'are'} {i} ." for i in range(count)]
        (folder / "CoLA" / f"{name}.tsv").write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory, run_bertjax) -> pathlib.Path:
    """A folder with text, a tokenizer, a corpus and a pretraining run."""
    home = tmp_path_factory.mktemp("story")
    write_text(home / "text")
    write_cola(home / "glue")
    tokenizer = ["--input", home / "text/*.txt", "--vocab_size", 400, "--output", home / "vocab"]
    succeeds(run_bertjax("tokenizer", "train", "--kind", "wordpiece", *tokenizer))
    prepare = ["--input", home / "text/*.txt", "--tokenizer", home / "vocab"]
    prepare += ["--validation_fraction", 0.2, "--workers", 1, "--output", home / "corpus"]
    succeeds(run_bertjax("prepare", *prepare))
    result = run_bertjax(*pretrain(home, home / "run"), devices=8)
    succeeds(result)
    (home / "pretrain.txt").write_text(result.stdout)
    return home


def pretrain(home: pathlib.Path, workdir: pathlib.Path, *overrides: str) -> list[str]:
    """Arguments of a small pretraining command."""
    corpus = f"--config.data.corpus={home / 'corpus'}"
    config = ["--config", "configs/bert.py:tiny", "--workdir", str(workdir)]
    return ["pretrain", *config, corpus, *SMALL, *overrides]


def finetune(home: pathlib.Path, workdir: pathlib.Path, *overrides: str) -> list[str]:
    """Arguments of a small fine-tuning command."""
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


def fails(result: subprocess.CompletedProcess, *expected: str) -> str:
    """Check for exit status 2 and a one-line error, and return that line."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    *_, line = result.stderr.splitlines()
    assert line.startswith("bertjax ")
    assert ": error: " in line
    assert result.stderr.count(": error: ") == 1
    for part in expected:
        assert part in line, line
    return line


def summary_of(run: pathlib.Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def checkpoint_of(run_bertjax, run: pathlib.Path, step: int = STEPS) -> dict:
    result = run_bertjax("inspect", f"{run}@{step}", "--json")
    succeeds(result)
    return json.loads(result.stdout)


def test_pretraining_prints_and_stores_its_results(home):
    summary = summary_of(home / "run")
    assert summary["steps"] == STEPS
    assert summary["tokens"] == STEPS * 8 * 32
    assert 0 < summary["unigram_loss"] < 7
    assert 0 <= summary["mlm_accuracy"] <= 1
    printed = (home / "pretrain.txt").read_text()
    assert re.search(r"MLM loss +[0-9.]+ nats +[0-9.]+ nats \(unigram\)", printed)
    assert "[MASK]" in printed
    assert "bertjax finetune --config" in printed
    lines = (home / "run" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in lines} >= {2, 3, 4, 6}
    (events,) = (home / "run" / "tensorboard").iterdir()
    assert b"mlm/loss" in events.read_bytes()
    assert f"{home}/run/metrics.jsonl, {home}/run/tensorboard/\n" in printed
    causes = ("steps", "input", "compile", "evaluation", "checkpoint", "lost")
    seconds = sum(summary[f"goodput/{cause}"] for cause in causes)
    assert summary["goodput"] == pytest.approx(summary["goodput/steps"] / seconds)
    assert f"goodput {summary['goodput']:.1%}" in printed


def test_a_finished_run_is_reported_as_complete(home, run_bertjax):
    before = summary_of(home / "run")
    again = run_bertjax(*pretrain(home, home / "run"))
    succeeds(again)
    assert "complete" in again.stdout
    assert f"--config.num_train_steps={2 * STEPS}" in again.stdout
    assert summary_of(home / "run") == before


def test_inspect_describes_runs_checkpoints_and_corpora(home, run_bertjax):
    for what in ("run", "corpus"):
        result = run_bertjax("inspect", home / what)
        succeeds(result)
        assert result.stdout.strip()
    checkpoint = checkpoint_of(run_bertjax, home / "run")
    assert checkpoint["step"] == STEPS
    assert len(checkpoint["parameters_sha256"]) == 64
    fails(run_bertjax("inspect", home / "text"), str(home / "text"))


def test_finetuning_writes_results(home, run_bertjax, tmp_path):
    options = ["--seeds", "2", "--config.tensorboard=True"]
    result = run_bertjax(*finetune(home, tmp_path / "cola", *options))
    succeeds(result)
    results = json.loads((tmp_path / "cola" / "results.json").read_text())
    assert results["seeds"] == len(results["each_seed"]) == 2
    assert "dev/matthews" in results["over_seeds"]
    assert any((tmp_path / "cola" / "seed_1" / "tensorboard").iterdir())
    predictions = list((tmp_path / "cola").rglob("CoLA.tsv"))
    assert predictions
    assert predictions[0].read_text().startswith("index\tprediction\n")


@pytest.mark.slow
def test_pretraining_from_raw_text(home, run_bertjax, tmp_path):
    """Tokenizer and corpus are created automatically, once."""
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


def bad_inputs(home: pathlib.Path, folder: pathlib.Path) -> dict[str, tuple[str, str]]:
    """Files that cannot be read, each with two parts of the error message."""
    empty, latin, broken = folder / "empty.txt", folder / "latin.txt", folder / "broken.txt.gz"
    empty.touch()
    latin.write_bytes("Words, then a caf\xe9.".encode("latin-1"))
    whole = gzip.compress((home / "text" / "topics.txt").read_bytes())
    broken.write_bytes(whole[: len(whole) // 2])
    return {
        str(folder / "missing*.txt"): ("missing*.txt", "no file"),
        str(empty): ("empty.txt", "empty"),
        str(latin): ("latin.txt", "17"),
        str(broken): ("broken.txt.gz", "truncated"),
    }


def test_text_that_cannot_be_read(home, run_bertjax, tmp_path):
    out = tmp_path / "out"
    for name, printed in bad_inputs(home, tmp_path).items():
        words = ["--input", name, "--tokenizer", home / "vocab", "--output", out]
        line = fails(run_bertjax("prepare", *words, "--workers", 1), printed[0])
        assert printed[1] in line.lower(), line
    words = ["--input", tmp_path / "latin.txt", "--tokenizer", home / "vocab", "--output", out]
    result = run_bertjax("prepare", *words, "--workers", 1, "--errors", "replace")
    succeeds(result)
    assert "invalid UTF-8 replaced by U+FFFD: 1" in result.stdout


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_damaged_corpus(home, run_bertjax, tmp_path, damage):
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    (shard,) = (tmp_path / "corpus").glob("train-*.array_record")
    content = bytearray(shard.read_bytes())
    if damage == "missing":
        shard.unlink()
    else:
        content[len(content) // 2] ^= 255
        shard.write_bytes(content)
    fails(run_bertjax(*pretrain(tmp_path, tmp_path / "run")), shard.name)


def test_a_corpus_of_another_tokenizer(home, run_bertjax, tmp_path):
    vocab = tmp_path / "vocab"
    words = ["--input", home / "text/*.txt", "--vocab_size", 390, "--output", vocab]
    succeeds(run_bertjax("tokenizer", "train", "--kind", "wordpiece", *words))
    other = f"--config.tokenizer.path={vocab}"
    fails(run_bertjax(*pretrain(home, tmp_path / "run", other)), "tokenizer")
    words = ["--input", home / "text/*.txt", "--tokenizer", vocab, "--output", home / "corpus"]
    fails(run_bertjax("prepare", *words), "corpus")


@pytest.mark.parametrize(
    ("override", "printed"),
    [
        ("model.hiden_size=8", "did you mean 'hidden_size'?"),
        ("model.hidden_size=abc", "config.model.hidden_size: got 'abc', expected an integer >= 1"),
        ("mesh.fsdp=3", "devices"),
        ("data.batch_size=9", "nearest: 8, 10"),
        ("data.batch_size=0", "config.data.batch_size: got 0, expected an integer >= 1"),
        ("data.corpus=nosuch", "nosuch: found no manifest.json"),
    ],
)
def test_an_invalid_config_is_refused(home, run_bertjax, tmp_path, override, printed):
    words = pretrain(home, tmp_path / "run", f"--config.{override}")
    fails(run_bertjax(*words, devices=2), printed)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_workdir_of_another_config(home, run_bertjax):
    before = (home / "run" / "config.json").read_bytes()
    other = run_bertjax(*pretrain(home, home / "run", "--config.optimizer.learning_rate=1.0"))
    fails(other, "optimizer.learning_rate", "--workdir")
    assert (home / "run" / "config.json").read_bytes() == before


@pytest.mark.slow
def test_a_damaged_newest_checkpoint(home, run_bertjax, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / str(STEPS)
    largest = max(newest.rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    largest.write_bytes(largest.read_bytes()[:-1])
    (tmp_path / "run" / "summary.json").unlink()
    result = run_bertjax(*pretrain(home, tmp_path / "run"), devices=8)
    succeeds(result)
    assert f"checkpoint {STEPS} is damaged" in result.stderr
    expected, found = (checkpoint_of(run_bertjax, run) for run in (home / "run", tmp_path / "run"))
    assert found["parameters_sha256"] == expected["parameters_sha256"]


def test_a_glue_file_with_a_bad_line(home, run_bertjax, tmp_path):
    shutil.copytree(home / "glue", tmp_path / "glue")
    file = tmp_path / "glue" / "CoLA" / "dev.tsv"
    lines = file.read_text().splitlines()
    lines[2] = "x\t7\t\tA sentence ."
    file.write_text("\n".join(lines) + "\n")
    words = finetune(home, tmp_path / "cola", "--data", str(tmp_path / "glue"))
    fails(run_bertjax(*words), f"{file} line 3:", "'7'")


FULL_DISK = """
mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 || exit 99
exec "$@"
"""


def can_mount() -> bool:
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(probe).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no small disk can be mounted here")
@pytest.mark.slow
def test_a_full_disk_while_saving(home, command_environment, root, tmp_path):
    words = pretrain(home, tmp_path / "disk" / "run", "--config.keep_checkpoints=100")
    words += ["--config.checkpoint_every=1", f"--config.num_train_steps={100 * STEPS}"]
    (tmp_path / "disk").mkdir()
    mounted = ["unshare", "-rm", "sh", "-c", FULL_DISK, "sh", "2m", tmp_path / "disk"]
    result = subprocess.run(
        [*mounted, sys.executable, "-m", "bertjax", *words],
        env=command_environment,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    fails(result, "full", str(tmp_path / "disk"))
