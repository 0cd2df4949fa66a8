"""bertjax prepare: interruptions, kills and messages of the command."""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import shlex
import signal
import time

import pytest

from bertjax.commands import prepare
from bertjax.corpus.reader import open_corpus, verify

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *(f"w{n}" for n in range(200))]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a vocabulary and 4 MB of text: 16 blocks and 16 shards."""
    draw = random.Random(3)
    folder = tmp_path_factory.mktemp("place")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    for number in range(4):
        lines = [" ".join(draw.choices(WORDS[5:], k=60)) for _ in range(4000)]
        documents = ["\n".join(lines[first : first + 10]) for first in range(0, 4000, 10)]
        (folder / f"{number}.txt").write_text("\n\n".join(documents))
    return folder


def arguments(place, out):
    options = "--workers 2 --shard_size 0.02 --validation_fraction 0.02"
    text = f"prepare --input {place}/?.txt --tokenizer {place}/vocab.txt --output {out} {options}"
    return text.split(" ")


def finished_shards(out):
    try:
        progress = json.loads((out / "unfinished/progress.json").read_text())
    except FileNotFoundError:
        return 0
    return sum(len(state["shards"]) for state in progress["states"].values())


def wait_for_another_shard(process, out):
    before = finished_shards(out)
    while finished_shards(out) <= before and process.poll() is None:
        time.sleep(0.005)


def children_of(process):
    """Child processes, listed per thread that started them."""
    tasks = pathlib.Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_prepare_resumes_after_kill_sigterm_and_ctrl_c(place, start_bertjax, run_bertjax, tmp_path):
    out, whole = tmp_path / "corpus", tmp_path / "whole"
    assert run_bertjax(*arguments(place, whole)).returncode == 0
    for number, status in (
        (signal.SIGKILL, -9),
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        (signal.SIGKILL, -9),
    ):
        with start_bertjax(*arguments(place, out)) as process:
            wait_for_another_shard(process, out)
            os.kill(process.pid, number)
            _, message = process.communicate()
        assert process.returncode == status, message
        if number != signal.SIGKILL:
            command = shlex.join(["bertjax", *map(str, arguments(place, out))])
            assert f"resumes after the last finished shard of {out}: {command}\n" in message
            assert "Traceback" not in message
    assert finished_shards(out) >= 4
    finished = run_bertjax(*arguments(place, out))
    assert finished.returncode == 0, finished.stderr
    assert contents(out) == contents(whole)
    verify(out)


def test_an_interrupt_before_the_first_shard_prints_no_folder(place, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bertjax.corpus.prepare.prepare", interrupted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = arguments(place, tmp_path / "corpus")[1:]
    with pytest.raises(KeyboardInterrupt):
        prepare.main(words)
    command = shlex.join(["bertjax", "prepare", *words])
    output_text = (
        f"stopped; no shard is finished yet, the same command starts from the beginning: {command}"
    )
    assert capsys.readouterr().err.splitlines()[-1] == output_text


def test_a_killed_worker_is_one_line(place, start_bertjax, tmp_path):
    out = tmp_path / "corpus"
    with start_bertjax(*arguments(place, out)) as process:
        wait_for_another_shard(process, out)
        os.kill(children_of(process)[0], signal.SIGKILL)
        _, message = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "was killed by SIGKILL" in message.splitlines()[-1]
    assert "Traceback" not in message


def test_the_summary_is_printed(place, run_bertjax, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"w1 w2. W3\xff.\n\n\xe2\x80\x8b\n\nw4 w5")
    done = run_bertjax(
        *("prepare", "--input", tmp_path / "a.txt", "--tokenizer", place / "vocab.txt"),
        *("--output", tmp_path / "corpus", "--errors", "replace"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "train: 2 documents, 3 sentences, 7 tokens in 1 shards"
    assert lines[1] == "dropped documents: 1 no_tokens"
    assert lines[2] == "invalid UTF-8 replaced by U+FFFD: 1"
    assert open_corpus(tmp_path / "corpus").fingerprint[:16] in lines[3]


def test_an_empty_validation_split_is_warned_of(place, run_bertjax, tmp_path):
    (tmp_path / "a.txt").write_text("w1")
    done = run_bertjax(
        *("prepare", "--input", tmp_path / "a.txt", "--tokenizer", place / "vocab.txt"),
        *("--output", tmp_path / "corpus", "--validation_fraction", "0.001"),
    )
    assert "warning: the validation split is empty" in done.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--format": "wikextractor"}, "did you mean 'wikiextractor'?"),
        (
            {"--validation_fraction": "2"},
            "--validation_fraction: got 2.0, expected a share in [0, 1)",
        ),
    ],
)
def test_a_user_error_is_one_line_and_status_2(place, run_bertjax, tmp_path, changes, message):
    options = {
        "--input": f"{place}/?.txt",
        "--tokenizer": f"{place}/vocab.txt",
        "--output": f"{tmp_path}/corpus",
    } | changes
    done = run_bertjax("prepare", *(word for option in options.items() for word in option))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "corpus").exists()


def test_help_has_examples(run_bertjax):
    done = run_bertjax("prepare", "--help")
    assert done.returncode == 0
    for word in ("python-docs", "tfds:", "--validation_fraction", "examples:"):
        assert word in done.stdout


def test_a_terminal_shows_a_progress_bar(place, start_bertjax, tmp_path):
    master, terminal = os.openpty()
    with start_bertjax(
        *arguments(place, tmp_path / "corpus"), stderr=terminal, env={"TERM": "xterm"}
    ) as process:
        os.close(terminal)
        seen = b""
        with contextlib.suppress(OSError):  # on Linux, the other end is closed
            while chunk := os.read(master, 4096):
                seen += chunk
        os.close(master)
        printed, _ = process.communicate()
    assert process.returncode == 0
    assert b"documents," in seen
    assert b"tokens/s" in seen
    assert printed.startswith("train: ")
