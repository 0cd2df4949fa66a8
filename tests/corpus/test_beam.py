"""A corpus prepared by Apache Beam is the corpus of one machine, byte for byte."""

import errno
import hashlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bucket_server import BucketServer, forget_clients

from bertjax.corpus import shards
from bertjax.corpus.prepare import prepare
from bertjax.errors import UserError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *(f"w{n}" for n in range(200))]


@pytest.fixture(scope="module")
def apache_beam():
    return pytest.importorskip("apache_beam", reason="no Apache Beam: the extra `beam`")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary")
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Four files of 400 kB, so that blocks and shards span files; some documents are empty."""
    draw = random.Random(11)
    folder = tmp_path_factory.mktemp("texts")
    for number in range(4):
        rows = []
        for _ in range(150):
            words = draw.choices(WORDS[6:], k=draw.choice([0, 5, 300, 1500]))
            text = " ".join(words) + "." if words else draw.choice(["", "\u200b"])
            rows.append(json.dumps({"text": text}))
        (folder / f"{number}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("held_out", ["a share", "files", "a share of another field"])
@pytest.mark.slow
def test_the_corpus_is_that_of_one_machine(apache_beam, texts, vocabulary, tmp_path, held_out):
    options = {"shard_size": 0.05, "validation_fraction": 0.2}
    inputs = [str(texts / "*.jsonl")]
    if held_out == "files":
        inputs = [str(texts / "[0-2].jsonl")]
        options = {"shard_size": 0.05, "validation_inputs": [str(texts / "3.jsonl")]}
    if held_out == "a share of another field":
        inputs = [str(tmp_path / "*.jsonl")]
        options |= {"text_field": "body"}
        for path in texts.iterdir():
            renamed = path.read_text().replace('{"text":', '{"body":')
            (tmp_path / path.name).write_text(renamed)
    alone = prepare(inputs, vocabulary, tmp_path / "alone", **options)
    by_beam = prepare(inputs, vocabulary, tmp_path / "by_beam", beam=[], **options)
    assert len(alone["splits"]["train"]["shards"]) >= 3
    assert alone["dropped"]["empty"] > 0
    assert by_beam == alone
    assert contents(tmp_path / "by_beam") == contents(tmp_path / "alone")


@pytest.mark.slow
def test_the_corpus_in_a_bucket_is_that_of_one_machine(
    apache_beam, texts, vocabulary, tmp_path, monkeypatch
):
    """The workers share no disk."""
    pytest.importorskip("gcsfs", reason="no client for buckets: the extra `gcs`")
    server = BucketServer()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BERTJAX_CACHE", str(tmp_path / "cache"))
    forget_clients()
    server.put("bucket", "corpus/unfinished/train-00009.array_record.json", b"left behind")
    options = {"shard_size": 0.05, "validation_fraction": 0.2}
    for path in sorted(texts.glob("*.jsonl")):
        server.put("bucket", f"texts/{path.name}", path.read_bytes())
    inputs = ["gs://bucket/texts/*.jsonl"]
    alone = prepare(inputs, vocabulary, tmp_path / "alone", **options)
    by_beam = prepare(inputs, vocabulary, "gs://bucket/corpus", beam=[], **options)
    assert by_beam == alone
    assert {
        name.removeprefix("corpus/"): hashlib.sha256(server.content("bucket", name)).hexdigest()
        for name in server.names("bucket")
        if name.startswith("corpus/")
    } == contents(tmp_path / "alone")
    again = prepare(inputs, vocabulary, "gs://bucket/corpus", beam=[], **options)
    assert again == alone
    forget_clients()
    server.close()


@pytest.fixture
def job_server(apache_beam, command_environment):
    """Options for a job server and a pool of workers, all in separate processes.

    They are Beam's own, which have the same interface as those of Flink and Spark.
    """
    servers = {
        "runners.portability.local_job_service_main": free_port(),
        "runners.worker.worker_pool_main": free_port(),
    }
    flags = ("--port", "--service_port")
    environment = command_environment | {
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", f"apache_beam.{module}", flag, str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        for (module, port), flag in zip(servers.items(), flags, strict=True)
    ]
    try:
        jobs, workers = servers.values()
        yield [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{jobs}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{workers}",
        ]
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@pytest.mark.slow
def test_the_corpus_by_a_job_server_is_that_of_one_machine(
    texts, vocabulary, tmp_path, job_server, root, command_environment
):
    alone = tmp_path / "alone"
    prepare([str(texts / "*.jsonl")], vocabulary, alone, shard_size=0.05)
    words = f"prepare --input {texts}/*.jsonl --tokenizer {vocabulary} --output {tmp_path}/corpus"
    command = [sys.executable, "-m", "bertjax", *words.split(), "--shard_size", "0.05"]
    done = subprocess.run(
        [*command, "--runner", "beam", "--", *job_server],
        capture_output=True,
        text=True,
        cwd=root,
        env=command_environment,
    )
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "corpus") == contents(alone)


@pytest.mark.slow
def test_a_full_disk_is_one_line(apache_beam, texts, vocabulary, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shards, "write_array", full)
    with pytest.raises(UserError, match=r"the disk is full; free some space and run the same"):
        prepare([str(texts / "*.jsonl")], vocabulary, tmp_path / "corpus", beam=[])


@pytest.mark.slow
def test_a_user_error_in_a_worker_is_one_line(
    apache_beam, texts, vocabulary, tmp_path, root, command_environment
):
    """Also if it occurs in a worker process."""
    (tmp_path / "bad.jsonl").write_text('{"text": "w1 w2"}\n{"txt": "w3"}\n')
    words = (
        f"prepare --input {tmp_path}/bad.jsonl --tokenizer {vocabulary} --output {tmp_path}/corpus"
    )
    command = [sys.executable, "-m", "bertjax", *words.split(), "--runner", "beam"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=root, env=command_environment
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        f'bertjax prepare: error: {tmp_path}/bad.jsonl:2: the field "text" is missing; string'
    )
    assert not (tmp_path / "corpus").exists()


@pytest.mark.slow
def test_an_absent_job_server_is_one_line(apache_beam, texts, vocabulary, tmp_path):
    port = free_port()
    where = [f"--job_endpoint=localhost:{port}", "--job_server_timeout=1"]
    with pytest.raises(UserError, match=rf"job server localhost:{port} does not reply"):
        prepare(
            [str(texts / "*.jsonl")],
            vocabulary,
            tmp_path / "corpus",
            beam=["--runner=PortableRunner", *where],
        )


@pytest.mark.slow
def test_a_corpus_started_without_beam_is_refused(apache_beam, texts, vocabulary, tmp_path):
    def stop(progress):
        if progress.documents > 200:
            raise KeyboardInterrupt

    arguments = [str(texts / "*.jsonl")], vocabulary, tmp_path / "corpus"
    with pytest.raises(KeyboardInterrupt):
        prepare(*arguments, shard_size=0.05, progress=stop)
    with pytest.raises(UserError, match="has shards written without --runner beam"):
        prepare(*arguments, shard_size=0.05, beam=[])


def test_options_of_beam_require_the_runner_beam(run_bertjax, vocabulary, tmp_path):
    words = ["prepare", "--input", "x", "--tokenizer", vocabulary, "--output", tmp_path / "corpus"]
    done = run_bertjax(*words, "--", "--runner=FlinkRunner")
    assert done.returncode == 2
    assert "options after -- are Beam's: got '--runner=FlinkRunner'" in done.stderr


def test_workers_have_no_effect_with_beam(run_bertjax, vocabulary, tmp_path):
    words = ["prepare", "--input", "x", "--tokenizer", vocabulary, "--output", tmp_path / "corpus"]
    done = run_bertjax(*words, "--runner", "beam", "--workers", 2)
    assert done.returncode == 2
    assert "--workers requires --runner local: pass Beam's own options after --" in done.stderr


def test_without_beam_the_error_has_the_install_command(texts, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "bertjax.corpus.beam", raising=False)
    with pytest.raises(UserError, match=r"pip install 'bertjax\[beam\]'"):
        prepare([str(texts / "*.jsonl")], vocabulary, tmp_path / "corpus", beam=[])
