"""Input files on the Hugging Face Hub, read through huggingface_hub from a local server."""

import http.server
import io
import json
import re
import threading
import urllib.parse

import pytest

from bertjax.corpus import text
from bertjax.corpus.sources import find_sources
from bertjax.errors import UserError
from bertjax.io import storage

COMMIT = "0" * 40


class Hub(http.server.BaseHTTPRequestHandler):
    """The requests of `HfFileSystem`: a dataset's commit, tree and paths, and parts of files."""

    files: dict[str, bytes]

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        base = "/api/datasets/me/corpus"
        if path.startswith(f"{base}/tree/"):
            folder = path.removeprefix(f"{base}/tree/").partition("/")[2]
            folder += "/" if folder else ""
            names = {
                folder + name.removeprefix(folder).partition("/")[0]
                for name in self.files
                if name.startswith(folder)
            }
            self._json([self._entry(name) for name in sorted(names)])
        elif path.startswith(base):
            self._json({"id": "me/corpus", "sha": COMMIT, "siblings": []})
        elif match := re.fullmatch(r"/datasets/me/corpus/resolve/[^/]+/(.*)", path):
            self._file(self.files[match[1]])
        else:
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        paths = urllib.parse.parse_qs(body).get("paths") or json.loads(body)["paths"]
        folders = {name.rpartition("/")[0] for name in self.files}
        self._json([self._entry(name) for name in paths if name in {*self.files, *folders}])

    def _entry(self, name: str) -> dict:
        if name not in self.files:
            return {"type": "directory", "path": name, "oid": f"tree-{name}"}
        return {"type": "file", "path": name, "size": len(self.files[name]), "oid": f"blob-{name}"}

    def _json(self, value, status=200, headers=()):
        self._send(status, json.dumps(value).encode(), dict(headers))

    def _file(self, content: bytes):
        first, last = 0, len(content) - 1
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), min(int(match[2] or last), last)
        headers = {"Content-Range": f"bytes {first}-{last}/{len(content)}", "ETag": '"x"'}
        self._send(206, content[first : last + 1], headers | {"X-Repo-Commit": COMMIT})

    def _send(self, status, content, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    """The files of the dataset me/corpus on a local server, which the client uses as the Hub."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(Hub, "files", {}, raising=False)
        huggingface_hub.HfFileSystem.clear_instance_cache()
        yield Hub.files
        huggingface_hub.HfFileSystem.clear_instance_cache()
        server.shutdown()


def parquet(texts) -> bytes:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stream = io.BytesIO()
    parquet.write_table(pa.table({"content": texts}), stream)
    return stream.getvalue()


def test_parquet_files_of_a_dataset_are_read_in_place(hub):
    hub["data/1.parquet"] = parquet(["three"])
    hub["data/0.parquet"] = parquet(["one", "two"])
    hub["readme.md"] = b"no data"
    pattern = "hf://datasets/me/corpus/data/*.parquet"
    sources = find_sources([pattern])
    assert [source.name for source in sources] == [
        "hf://datasets/me/corpus/data/0.parquet",
        "hf://datasets/me/corpus/data/1.parquet",
    ]
    assert [source.bytes for source in sources] == [len(hub[f"data/{n}.parquet"]) for n in (0, 1)]
    assert sources[0].modified != sources[1].modified
    assert list(text.read_documents([pattern], text_field="content")) == ["one", "two", "three"]
    with pytest.raises(UserError, match=r'0\.parquet: the column "text" is missing'):
        list(text.read_documents([pattern]))


def test_missing_files_and_other_schemes_are_one_line(hub):
    for pattern in ("hf://datasets/me/corpus/data/*.csv", "hf://datasets/me/corpus/a.csv"):
        with pytest.raises(UserError, match=r"no file matches 'hf://datasets/me/corpus/"):
            find_sources([pattern])
    with pytest.raises(UserError, match="unsupported input: got ftp://a/b, expected a local path"):
        find_sources(["ftp://a/b"])


def test_an_unreachable_hub_is_tried_again_and_then_one_line(hub, monkeypatch, capsys):
    from huggingface_hub import HfFileSystem, constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(storage, "_RETRY_DELAYS", (0.001,))
    HfFileSystem.clear_instance_cache()
    with pytest.raises(UserError, match=r"hf://.*: .*; 2 attempts failed, run the command again"):
        find_sources(["hf://datasets/me/corpus/*.csv"])
    assert "retrying in" in capsys.readouterr().err
