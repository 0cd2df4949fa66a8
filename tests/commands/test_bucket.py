"""A run whose text, corpus and workdir are in a bucket, on machines that are replaced."""

import json
import pathlib
import shutil
import signal
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bucket_server import BucketServer

pytestmark = pytest.mark.slow

CHANGES = (
    *("data.phases=()", "data.max_seq_length=32", "data.batch_size=8", "model.vocab_size=200"),
    *("model.num_hidden_layers=1", "model.hidden_size=16", "model.intermediate_size=32"),
    *("optimizer.warmup_steps=2", "log_every=1", "checkpoint_every=4", "eval_every=100"),
    *("eval_examples=8", "keep_checkpoints=2", "num_train_steps=12"),
)


@pytest.fixture
def bucket():
    pytest.importorskip("gcsfs", reason="no client for buckets: the extra `gcs`")
    server = BucketServer()
    yield server
    server.shutdown()
    server.server_close()


def test_a_run_in_a_bucket_resumes_on_other_machines_after_a_kill(
    bucket, run_bertjax, start_bertjax, tmp_path
):
    text = "".join(f"The number {n} comes before {n + 1}.\nNot {n + 7}.\n\n" for n in range(400))
    bucket.put("bucket", "text/numbers.txt", text.encode())

    def run_command(run, *words, machine="one"):
        env = bucket.environment | {"BERTJAX_CACHE": str(tmp_path / machine)}
        return run(*words, env=env)

    def pretrain(run, workdir, *more, before=(), **options):
        changes = ["data.corpus=gs://bucket/corpus", *CHANGES, *more]
        words = [*before, "pretrain", "--config", "configs/bert.py:tiny", "--workdir", workdir]
        return run_command(run, *words, *(f"--config.{change}" for change in changes), **options)

    def checkpoints():
        return {name.split("/")[3] for name in bucket.names("bucket") if "/checkpoints/" in name}

    vocabulary = tmp_path / "vocabulary"
    words = ["tokenizer", "train", "--input", "gs://bucket/text/*", "--vocab_size", "200"]
    assert run_command(run_bertjax, *words, "--output", vocabulary).returncode == 0
    words = ["prepare", "--input", "gs://bucket/text/*", "--tokenizer", vocabulary]
    words += ["--validation_fraction", "0.1", "--output", "gs://bucket/corpus"]
    done = run_command(run_bertjax, *words)
    assert done.returncode == 0, done.stderr
    assert "corpus: gs://bucket/corpus" in done.stdout

    process = pretrain(start_bertjax, "gs://bucket/runs/it")
    end = time.monotonic() + 240
    while "runs/it/checkpoints/8/integrity.json" not in bucket.names("bucket"):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shutil.rmtree(tmp_path / "one")
    bucket.failures = 2

    together = ["launch", "local", "--processes", "2", "--devices", "1", "--"]
    done = pretrain(run_bertjax, "gs://bucket/runs/it", before=together, machine="two")
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stderr
    assert checkpoints() == {"8", "12"}
    summary = json.loads(bucket.objects["bucket", "runs/it/summary.json"][0])

    whole = pretrain(run_bertjax, str(tmp_path / "on_disk"), machine="two")
    assert whole.returncode == 0, whole.stderr
    alone = json.loads((tmp_path / "on_disk" / "summary.json").read_text())
    assert summary["mlm_loss"] == pytest.approx(alone["mlm_loss"], rel=1e-5)

    bucket.refused.add("bucket")
    done = pretrain(run_bertjax, "gs://bucket/runs/it", machine="two")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "access to gs://bucket/" in line
