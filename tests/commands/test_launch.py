"""bertjax launch: real processes on this machine that connect, are killed, stop and resume."""

import json
import os
import pathlib
import shutil
import signal
import socket
import time

import pytest

from bertjax.train.checkpoint import folder as checkpoint_folder

STEPS = 12
TINY = {
    "num_train_steps": STEPS,
    "log_every": 1,
    "eval_every": STEPS,
    "eval_examples": 16,
    "checkpoint_every": 4,
    "keep_checkpoints": 9,
    "model.vocab_size": 600,
    "model.hidden_size": 16,
    "model.num_hidden_layers": 1,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 32,
    "model.max_position_embeddings": 32,
    "model.precision": "float32",
    "data.phases": "()",
    "data.max_seq_length": 32,
    "data.batch_size": 16,
    "optimizer.warmup_steps": 5,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, run_bertjax):
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("corpus")
    documents = [" ".join(topic.split()) for _, topic in sorted(topics.items())]
    (folder / "topics.txt").write_text("\n\n".join(documents[:20]), encoding="utf-8")
    own = ["--input", folder / "topics.txt"]
    made = run_bertjax(
        "tokenizer",
        "train",
        *own,
        "--kind",
        "wordpiece",
        "--vocab_size",
        600,
        "--output",
        folder / "vocab",
    )
    assert made.returncode == 0, made.stderr
    own += ["--tokenizer", folder / "vocab", "--output", folder / "corpus"]
    made = run_bertjax("prepare", *own, "--validation_fraction", 0.2)
    assert made.returncode == 0, made.stderr
    return folder / "corpus"


def words(corpus, workdir, **changes):
    fields = TINY | {"data.corpus": corpus} | changes
    overrides = [f"--config.{name}={value}" for name, value in fields.items()]
    return ["pretrain", "--config", "configs/quickstart.py", "--workdir", workdir, *overrides]


def launch_words(processes, devices, *rest):
    return ["launch", "local", "--processes", processes, "--devices", devices, "--", *rest]


def losses(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.fixture(scope="module")
def one_process(corpus, tmp_path_factory, run_bertjax):
    """One process with eight devices."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    done = run_bertjax(*words(corpus, workdir), devices=8)
    assert done.returncode == 0, done.stderr
    return losses(workdir)


RECORDS_EXAMPLES = """\
import json, os
from bertjax.data.examples import SentenceExamples

build = SentenceExamples.build

def record(self, epoch, example):
    # One example is read for shapes, hundreds for the mean number of tokens.
    if self._corpus.split == "train" and 1 < len(example) <= 48:
        name = f"{os.environ['RECORDED']}/{os.environ['BERTJAX_PROCESS']}"
        with open(name, "a") as file:
            file.write(json.dumps([epoch, example.tolist()]) + "\\n")
    return build(self, epoch, example)

if "BERTJAX_PROCESS" in os.environ:
    SentenceExamples.build = record
"""


@pytest.fixture(scope="module")
def two_processes(corpus, tmp_path_factory, run_bertjax):
    """The workdir of two processes with four devices each."""
    workdir = tmp_path_factory.mktemp("two") / "run"
    done = run_bertjax(*launch_words(2, 4, *words(corpus, workdir)))
    assert done.returncode == 0, done.stderr
    return workdir


@pytest.mark.slow
def test_two_processes_train_the_same_model_as_one(one_process, two_processes):
    assert losses(two_processes) == pytest.approx(one_process, rel=1e-5)


def resume(two_processes, workdir, corpus, run_bertjax, processes, **options):
    """Resumes a copy of the run from step 4, with one device for each process."""
    shutil.copytree(two_processes, workdir)
    for later in (8, STEPS):
        shutil.rmtree(workdir / "checkpoints" / str(later))
    (workdir / "summary.json").unlink()
    (workdir / "metrics.jsonl").unlink()
    done = run_bertjax(*launch_words(processes, 1, *words(corpus, workdir)), **options)
    assert done.returncode == 0, done.stderr
    assert "resuming from step 4" in done.stderr


def later_losses(one_process):
    return pytest.approx({step: loss for step, loss in one_process.items() if step > 4}, rel=1e-5)


@pytest.mark.slow
def test_one_process_resumes_with_the_same_data(
    one_process, two_processes, corpus, tmp_path, run_bertjax
):
    resume(two_processes, tmp_path / "run", corpus, run_bertjax, 1)
    assert losses(tmp_path / "run") == later_losses(one_process)


@pytest.mark.slow
def test_more_processes_resume_and_each_reads_its_part_of_the_data(
    one_process, two_processes, corpus, tmp_path, run_bertjax, root
):
    """A fourth of each batch, no example twice."""
    (tmp_path / "recorded").mkdir()
    (tmp_path / "sitecustomize.py").write_text(RECORDS_EXAMPLES)
    path = os.pathsep.join([str(tmp_path), str(root)])
    env = {"PYTHONPATH": path, "RECORDED": str(tmp_path / "recorded")}
    resume(two_processes, tmp_path / "run", corpus, run_bertjax, 4, env=env)
    assert losses(tmp_path / "run") == later_losses(one_process)
    parts = []
    for number in range(4):
        lines = (tmp_path / "recorded" / str(number)).read_text().splitlines()
        read = [(epoch, each) for epoch, some in map(json.loads, lines) for each in some]
        assert len(read) == len(set(read)) == (STEPS - 4) * TINY["data.batch_size"] // 4
        parts.append(set(read))
    assert len(set.union(*parts)) == sum(map(len, parts))


def process_of(number):
    """Find the process of a job on this machine by its index, from its environment."""
    for folder in pathlib.Path("/proc").iterdir():
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"BERTJAX_PROCESS={number}\0".encode() in environment and MARK in environment:
            return int(folder.name)
    raise AssertionError(f"no process {number}")


MARK = f"LAUNCH_TEST={os.getpid()}".encode()


@pytest.fixture
def running(corpus, tmp_path, start_bertjax):
    """A job of two processes that is training, far from its end."""
    workdir = tmp_path / "run"
    longer = words(corpus, workdir, num_train_steps=100_000)
    mark = dict([MARK.decode().split("=")])
    with start_bertjax(*launch_words(2, 4, *longer), env=mark) as process:
        try:
            while not checkpoint_folder.steps(workdir / "checkpoints"):
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.1)
            yield process, workdir
        finally:
            process.kill()


@pytest.mark.slow
def test_a_job_with_a_killed_process_ends_and_resumes_bit_for_bit(
    two_processes, corpus, tmp_path, start_bertjax, run_bertjax
):
    workdir = tmp_path / "run"
    slowly = words(corpus, workdir, eval_every=1)
    mark = dict([MARK.decode().split("=")])
    with start_bertjax(*launch_words(2, 4, *slowly), env=mark) as process:
        while not checkpoint_folder.steps(workdir / "checkpoints"):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        os.kill(process_of(1), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "bertjax launch: process 1 ended with SIGKILL" in errors
    assert not (workdir / "summary.json").exists()
    done = run_bertjax(*launch_words(2, 4, *words(corpus, workdir)))
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stderr
    assert losses(workdir) == losses(two_processes)


@pytest.mark.slow
def test_sigterm_to_one_process_saves_once_and_ends_all(running):
    process, workdir = running
    os.kill(process_of(1), signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors.count("stopped and saved") == 1
    steps = sorted(int(folder.name) for folder in (workdir / "checkpoints").iterdir())
    recorded = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == max(record["step"] for record in recorded)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def one_of_two(port, number, **more):
    job = {"BERTJAX_COORDINATOR": f"127.0.0.1:{port}", "BERTJAX_PROCESSES": "2"}
    return job | {"BERTJAX_PROCESS": str(number), "BERTJAX_INITIALIZATION_TIMEOUT": "5"} | more


@pytest.mark.slow
def test_processes_with_different_configs_are_refused(corpus, tmp_path, start_bertjax):
    port, printed = free_port(), []
    jobs = [
        start_bertjax(
            *words(corpus, tmp_path / "run", **{"optimizer.learning_rate": rate}),
            env=one_of_two(port, number, BERTJAX_INITIALIZATION_TIMEOUT="60"),
        )
        for number, rate in enumerate((1e-3, 2e-3))
    ]
    for job in jobs:
        printed.append(job.communicate(timeout=120)[1])
        assert job.returncode == 2
    for line in printed:
        assert "the config of process 1 differs from that of process 0" in line
    assert not (tmp_path / "run").exists()


IN_OWN_FOLDER = """\
import os, pathlib

if number := os.environ.get("BERTJAX_PROCESS"):
    os.chdir(pathlib.Path(__file__).with_name(number))
"""


@pytest.mark.slow
def test_processes_with_different_corpora_are_refused(corpus, tmp_path, run_bertjax, root):
    (tmp_path / "1").mkdir()
    shutil.copytree(corpus, tmp_path / "0" / "corpus")
    own = ["--input", corpus.parent / "topics.txt", "--tokenizer", corpus.parent / "vocab"]
    made = run_bertjax("prepare", *own, "--output", tmp_path / "1" / "corpus")
    assert made.returncode == 0, made.stderr
    (tmp_path / "sitecustomize.py").write_text(IN_OWN_FOLDER)
    changed = words("corpus", tmp_path / "run")
    changed[changed.index("configs/quickstart.py")] = "quickstart"
    path = os.pathsep.join([str(tmp_path), str(root)])
    done = run_bertjax(*launch_words(2, 1, *changed), env={"PYTHONPATH": path})
    assert done.returncode == 2
    assert "the corpus of process 1 differs from that of process 0" in done.stderr


@pytest.mark.slow
def test_processes_that_do_not_join_are_named(corpus, tmp_path, start_bertjax):
    port = free_port()
    job = {"BERTJAX_PROCESSES": "4", "BERTJAX_INITIALIZATION_TIMEOUT": "4"}
    here = [
        start_bertjax(*words(corpus, tmp_path / "run"), env=one_of_two(port, number) | job)
        for number in (0, 2)
    ]
    for process in here:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 75
        assert errors == (
            "bertjax pretrain: error: process 1, 3 of 4 did not connect within 4 s; look for its "
            "error, or raise BERTJAX_INITIALIZATION_TIMEOUT\n"
        )


@pytest.mark.slow
def test_a_missing_first_process_is_named(corpus, tmp_path, run_bertjax):
    port = free_port()
    done = run_bertjax(*words(corpus, tmp_path / "run"), env=one_of_two(port, 1))
    assert done.returncode == 75
    assert f"process 0 at 127.0.0.1:{port} did not reply within 5 s" in done.stderr


@pytest.mark.slow
def test_after_a_user_error_no_command_is_suggested(corpus, tmp_path, run_bertjax):
    wrong = words(corpus, tmp_path / "run", **{"optimizer.warmup_steps": 1000})
    done = run_bertjax("launch", "local", "--processes", "1", "--", *wrong)
    assert done.returncode == 2
    mistake, last = done.stderr.splitlines()[-2:]
    assert mistake.startswith("bertjax pretrain: error: warmup_steps: got 1000, expected 0 to")
    assert last.startswith(
        "bertjax launch: process 0 ended with exit status 2; fix the error above"
    )


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--processes", "0", "--", "pretrain"], "--processes: got 0, expected an integer >= 1"),
        (["--processes", "2"], "expected `-- VERB ...`"),
        (["--", "extract"], "with a VERB of pretrain, finetune"),
    ],
)
def test_a_user_error_is_one_line(run_bertjax, arguments, output):
    done = run_bertjax("launch", "local", *arguments)
    assert done.returncode == 2
    assert output in done.stderr
    assert done.stderr.count("\n") == 1
