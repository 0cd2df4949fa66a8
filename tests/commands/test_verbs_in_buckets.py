"""Every verb that reads or writes folders, with all folders in a bucket."""

import json
import pathlib
import shutil
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bucket_server import BucketServer, forget_clients
from s3_server import S3Server

from bertjax import cli
from bertjax.huggingface import exporting

pytestmark = pytest.mark.slow

COLA = "".join(f"x\t{n % 2}\t\t{'a b c' if n % 2 else 'c b a'} d\n" for n in range(32))


@pytest.fixture(params=["gs", "s3"])
def bucket(request, monkeypatch, tmp_path):
    """A server, and the URL of its bucket."""
    client = {"gs": "gcsfs", "s3": "s3fs"}[request.param]
    pytest.importorskip(client, reason=f"no client for {request.param}://")
    server = BucketServer() if request.param == "gs" else S3Server()
    if request.param == "s3":
        server.make("bucket")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BERTJAX_CACHE", str(tmp_path / "cache"))
    forget_clients()
    yield server, f"{request.param}://bucket"
    forget_clients()
    server.close()


def test_all_folders_can_be_in_a_bucket(
    bucket, save_pretrained, root, monkeypatch, capsys, tmp_path
):
    server, url = bucket
    monkeypatch.chdir(root)

    def run_cli(*words):
        status = cli.main([str(word) for word in words])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        return shown.out

    for file in save_pretrained(tmp_path / "released").iterdir():
        server.put("bucket", f"released/{file.name}", file.read_bytes())
    for split in ("train", "dev"):
        server.put("bucket", f"glue/CoLA/{split}.tsv", COLA.encode())
    server.put("bucket", "texts.txt", b"a b c\nx y\n")

    run_cli("import", "--model", f"{url}/released", "--workdir", f"{url}/run")
    assert json.loads(run_cli("inspect", "--json", f"{url}/run"))["latest_checkpoint"] == 0
    assert json.loads(run_cli("inspect", "--json", f"{url}/run@0"))["step"] == 0

    words = ["embed", "--model", f"{url}/run", "--input", f"{url}/texts.txt"]
    run_cli(*words, "--output", f"{url}/features/them.npz")
    (tmp_path / "them.npz").write_bytes(server.content("bucket", "features/them.npz"))
    assert np.load(tmp_path / "them.npz")["features"].shape == (5, 1, 16)

    suite = [
        "suite",
        "glue",
        "--init",
        f"{url}/run",
        "--data",
        f"{url}/glue",
        "--workdir",
        f"{url}/suite",
    ]
    suite += ["--tasks", "cola", "--seeds", "1", "--recipe", "tiny"]
    suite += ["--config.keep_checkpoints=true", "--config.data.max_seq_length=16"]
    suite.append("--config.data.padded_lengths=(16,)")
    first = run_cli(*suite)
    shutil.rmtree(tmp_path / "cache")
    before = server.content("bucket", "suite/cola/seed_0/metrics.jsonl")
    assert run_cli(*suite) == first
    assert server.content("bucket", "suite/cola/seed_0/metrics.jsonl") == before
    assert "cola" in server.content("bucket", "suite/table.md").decode()

    run_cli("report", f"{url}/run", f"{url}/suite", "--output", f"{url}/report.html")
    assert "GLUE: " in server.content("bucket", "report.html").decode()

    run_cli("export", "--model", f"{url}/suite/cola/seed_0", "--output", f"{url}/exported")
    assert "exported/model.safetensors" in server.names("bucket")
    words = ["predict", "--model", f"{url}/suite/cola/seed_0", "--input", f"{url}/texts.txt"]
    assert len(run_cli(*words).splitlines()) == 2
    words = ["evaluate", "predictions", "cola", "--references", f"{url}/glue/CoLA/dev.tsv"]
    (predicted,) = [
        name
        for name in server.names("bucket")
        if name.startswith("suite/cola/predictions/dev/") and name.endswith(".tsv")
    ]
    found = json.loads(run_cli(*words, "--predictions", f"{url}/{predicted}"))
    assert found["examples"] == 32
    assert exporting.find(f"{url}/suite/cola").seed == 0
