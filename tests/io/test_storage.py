"""Buckets of a local server, and retries of storage that fails temporarily."""

import errno
import json
import pathlib
import sys
import time
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bucket_server import BucketServer, forget_clients
from s3_server import S3Server

from bertjax.corpus.sources import find_sources
from bertjax.errors import TemporaryError, UserError
from bertjax.io import copies, storage
from bertjax.io.files import read_json, write_json
from bertjax.io.lines import read_lines
from bertjax.runs import bucket_sync
from bertjax.train.checkpoint.manager import Checkpoints


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """An empty bucket, gs://bucket."""
    pytest.importorskip("gcsfs", reason="no client for buckets: the extra `gcs`")
    server = BucketServer()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BERTJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "_RETRY_DELAYS", (0.01, 0.02, 0.01))
    forget_clients()
    yield server
    forget_clients()
    server.close()


@pytest.fixture
def s3(monkeypatch, tmp_path):
    """An empty bucket, s3://bucket."""
    pytest.importorskip("s3fs", reason="no client for buckets: the extra `s3`")
    server = S3Server()
    server.make("bucket")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BERTJAX_CACHE", str(tmp_path / "cache"))
    forget_clients()
    yield server
    forget_clients()
    server.close()


@pytest.mark.parametrize(
    ("name", "remote"), [("gs://b/x", True), ("s3://b", True), ("/gs:/b", False), ("a/b", False)]
)
def test_is_remote(name, remote):
    assert storage.is_remote(name) is remote


def test_a_local_path_stays_local():
    assert storage.to_path("a/b") == pathlib.Path("a/b") == copies.local_copy("a/b")
    with copies.atomic_upload("a/b", "x") as folder:
        assert folder == pathlib.Path("a/b")


def test_an_unsupported_url_is_one_line():
    with pytest.raises(
        UserError, match="got az://c/x, expected a local path or one that starts with gs://"
    ):
        storage.to_path("az://c/x")


@pytest.mark.slow
def test_a_folder_is_downloaded_once_and_again_after_a_change(bucket):
    bucket.put("bucket", "run/a.txt", b"one")
    bucket.put("bucket", "run/deep/b.txt", b"two")
    folder = copies.local_copy("gs://bucket/run")
    assert (folder / "a.txt").read_text() == "one"
    assert (folder / "deep" / "b.txt").read_text() == "two"
    assert time.gmtime((folder / "a.txt").stat().st_mtime)[:3] == (2026, 1, 1)

    def read():
        return [path for method, path in bucket.requests if "alt=media" in path]

    before = len(read())
    assert copies.local_copy("gs://bucket/run") == folder
    assert len(read()) == before
    bucket.put("bucket", "run/a.txt", b"uno")
    assert (copies.local_copy("gs://bucket/run") / "a.txt").read_text() == "uno"


@pytest.mark.slow
def test_a_missing_folder_is_one_line(bucket):
    with pytest.raises(UserError, match=r"gs://bucket/no does not exist or is empty"):
        copies.local_copy("gs://bucket/no")


@pytest.mark.slow
def test_denied_access_is_one_line(bucket):
    bucket.refused.add("bucket")
    with pytest.raises(UserError, match="access to gs://bucket/run is denied"):
        copies.local_copy("gs://bucket/run")


@pytest.mark.slow
def test_a_folder_is_uploaded_with_one_file_last_and_only_once(bucket):
    def stopped():
        with copies.atomic_upload("gs://bucket/c", "last") as folder:
            (folder / "deep").mkdir()
            (folder / "deep" / "part").write_text("12345")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert bucket.names("bucket") == []
    with copies.atomic_upload("gs://bucket/c", "last") as folder:
        assert (folder / "deep" / "part").read_text() == "12345"
        (folder / "more").write_text("x")
        (folder / "last").write_text("y")
    assert bucket.names("bucket") == ["c/deep/part", "c/last", "c/more"]
    generation = {name: bucket.objects["bucket", name][1] for name in bucket.names("bucket")}
    assert max(generation, key=generation.get) == "c/last"
    assert not folder.exists()


@pytest.mark.slow
def test_an_interrupted_upload_of_the_same_files_is_resumed(bucket, tmp_path, monkeypatch):
    target = storage.to_path("gs://bucket/c")
    (tmp_path / "part").write_text("12345")
    (tmp_path / "last").write_text("y")
    (tmp_path / ".last.0.part").write_text("left by a killed process")

    def interrupt(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(copies, "upload", interrupt)
        with pytest.raises(KeyboardInterrupt):
            copies.upload_tree(tmp_path, target, "last")
    assert bucket.names("bucket") == ["c/.upload", "c/part"]
    generation = bucket.objects["bucket", "c/part"][1]
    copies.upload_tree(tmp_path, target, "last")
    assert bucket.names("bucket") == ["c/last", "c/part"]
    assert bucket.objects["bucket", "c/part"][1] == generation
    (tmp_path / "part").write_text("54321")
    copies.upload_tree(tmp_path, target, "last")
    assert bucket.content("bucket", "c/part") == b"54321"


@pytest.mark.slow
def test_a_completed_upload_is_recognised(bucket):
    bucket.put("bucket", "c/last", b"whole")
    with copies.atomic_upload("gs://bucket/c", "last") as folder:
        assert (folder / "last").read_text() == "whole"


@pytest.mark.slow
def test_files_in_s3_are_downloaded_again_after_a_change(s3):
    for name, content in (("run/", b""), ("run/a.txt", b"one"), ("run/deep/b.txt", b"two")):
        s3.put("bucket", name, content)
    folder = copies.local_copy("s3://bucket/run")
    assert (folder / "a.txt").read_text() == "one"
    assert (folder / "deep" / "b.txt").read_text() == "two"
    s3.put("bucket", "run/a.txt", b"uno")
    assert (copies.local_copy("s3://bucket/run") / "a.txt").read_text() == "uno"
    assert copies.local_copy("s3://bucket/run/a.txt").read_text() == "uno"
    for name in ("bucket/no", "other/no"):
        with pytest.raises(UserError, match=f"s3://{name} does not exist or is empty"):
            copies.local_copy(f"s3://{name}")


@pytest.mark.slow
def test_files_and_folders_are_uploaded_to_s3(s3):
    with copies.atomic_upload("s3://bucket/c", "last") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "part").write_text("12345")
        (folder / "last").write_text("y")
    with copies.upload_file("s3://bucket/c/file") as file:
        file.write_text("z")
    assert s3.names("bucket") == ["c/deep/part", "c/file", "c/last"]
    assert s3.content("bucket", "c/deep/part") == b"12345"
    (source,) = find_sources(["s3://bucket/c/deep/*"])
    assert list(read_lines(source.name)) == [(0, b"12345")]
    s3.put("bucket", "c/deep/part", b"54321")
    (later,) = find_sources(["s3://bucket/c/deep/*"])
    assert later != source


@pytest.mark.slow
def test_checkpoints_in_s3_are_refused(s3):
    with pytest.raises(
        UserError, match=r"s3://bucket/run: Orbax cannot write checkpoints to s3://"
    ):
        Checkpoints("s3://bucket/run")


@pytest.mark.parametrize("scheme", ["gs", "s3"])
@pytest.mark.slow
def test_a_file_is_renamed_and_a_folder_removed(scheme, request):
    server = request.getfixturevalue({"gs": "bucket", "s3": "s3"}[scheme])
    with copies.upload_folder(f"{scheme}://bucket/made") as folder:
        for name in ("a", "b"):
            (folder / name).write_text(name)
    folder = storage.to_path(f"{scheme}://bucket/made")
    storage.move(folder / "a", folder.parent / "else")
    assert server.names("bucket") == ["else", "made/b"]
    assert server.content("bucket", "else") == b"a"
    for _ in range(2):
        storage.remove_folder(folder)
        assert server.names("bucket") == ["else"]


@pytest.mark.slow
def test_nothing_is_uploaded_after_an_error(bucket):
    def failed():
        with copies.upload_file("gs://bucket/file") as file:
            file.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failed()
    assert bucket.names("bucket") == []


@pytest.mark.slow
def test_a_downloaded_file_is_removed_after_an_error(bucket):
    """The bucket may have changed by the next attempt."""

    def refused():
        with copies.atomic_upload("gs://bucket/c", "last") as folder:
            assert (folder / "last").exists()
            raise UserError("another one")

    bucket.put("bucket", "c/last", b"whole")
    with pytest.raises(UserError, match="another one"):
        refused()
    bucket.objects.clear()
    with copies.atomic_upload("gs://bucket/c", "last") as folder:
        assert not (folder / "last").exists()
        (folder / "last").write_text("new")
    assert bucket.content("bucket", "c/last") == b"new"


@pytest.mark.slow
def test_a_run_is_uploaded_while_it_continues_and_after_a_failure(bucket, monkeypatch, capsys):
    monkeypatch.setattr(bucket_sync, "_SECONDS_BETWEEN_UPLOADS", 0.05)
    folder = bucket_sync.local_folder("gs://bucket/run", with_checkpoints=True)
    folder.mkdir(parents=True)
    with bucket_sync.sync_to_bucket(folder, "gs://bucket/run"):
        for name, refused in (("first", set()), ("second", {"bucket"}), ("third", set())):
            bucket.refused = refused
            (folder / name).write_text(name)
            reached = f"run/{name}"
            end = time.monotonic() + 20
            while not refused and reached not in bucket.names("bucket"):
                assert time.monotonic() < end
                time.sleep(0.01)
            while refused and "is denied" not in capsys.readouterr().err:
                assert time.monotonic() < end
                time.sleep(0.01)
        (folder / "first").unlink()
    assert bucket.names("bucket") == ["run/second", "run/third"]


@pytest.mark.slow
def test_small_files_and_text(bucket):
    place = storage.to_path("gs://bucket/run/config.json")
    write_json(place, {"seed": 3})
    assert json.loads(bucket.objects["bucket", "run/config.json"][0]) == {"seed": 3}
    assert read_json(place) == {"seed": 3}
    bucket.put("bucket", "text/b.txt", b"second\n")
    bucket.put("bucket", "text/a.txt", b"first\nline\n")
    sources = find_sources(["gs://bucket/text/*.txt"])
    assert [source.name for source in sources] == [
        "gs://bucket/text/a.txt",
        "gs://bucket/text/b.txt",
    ]
    assert [source.bytes for source in sources] == [11, 7]
    assert list(read_lines(sources[0].name)) == [(0, b"first\n"), (6, b"line\n")]
    with pytest.raises(UserError, match="no file matches 'gs://bucket/text/x"):
        find_sources(["gs://bucket/text/x*"])


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst"])
@pytest.mark.slow
def test_compressed_text_is_streamed_from_a_bucket(ending, bucket):
    import bz2
    import gzip
    import lzma

    import zstandard

    packed = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
        "zst": zstandard.ZstdCompressor().compress,
    }[ending](b"a line\n" * 1000)
    bucket.put("bucket", f"t.{ending}", packed)
    assert [line for _, line in read_lines(f"gs://bucket/t.{ending}")] == [b"a line\n"] * 1000


class NoCredentialsError(Exception):
    """An error named like those of botocore and google.auth."""


def temporary(code: int) -> Exception:
    class AnswerError(Exception):
        pass

    error = AnswerError("the server is busy")
    error.code = code
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.ESTALE, "Stale file handle"),
        TimeoutError("timed out"),
        ConnectionResetError("reset"),
        temporary(429),
        temporary(503),
    ],
)
def test_temporary_failures_are_retried_and_logged(error, monkeypatch):
    waits = []
    monkeypatch.setattr(storage, "time", types.SimpleNamespace(sleep=waits.append))
    left, logged = [error] * 3, []

    def read():
        if left:
            raise left.pop()
        return "read"

    assert storage.with_retries(read, "file", logged.append) == "read"
    assert len(waits) == len(logged) == 3
    assert all(low <= wait <= 3 * low for low, wait in zip((0.5, 1, 2), waits, strict=True))
    assert logged[0].startswith("storage: file: ")
    assert "retrying in" in logged[0]


def test_the_last_failure_is_one_line(monkeypatch):
    monkeypatch.setattr(storage, "time", types.SimpleNamespace(sleep=lambda _: None))
    tries = []

    def read():
        tries.append(1)
        raise TimeoutError("timed out")

    with pytest.raises(
        TemporaryError, match="file: timed out; 7 attempts failed, run the command again later"
    ):
        storage.with_retries(read, "file", lambda _: None)
    assert len(tries) == 7


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FileNotFoundError(errno.ENOENT, "no"), FileNotFoundError),
        (ValueError("else"), ValueError),
        (OSError(errno.ENOSPC, "full"), OSError),
        (PermissionError(errno.EACCES, "shut"), UserError),
        (temporary(403), UserError),
        (NoCredentialsError("Unable to locate credentials"), UserError),
    ],
)
def test_permanent_failures_are_raised_immediately(error, raised, monkeypatch):
    monkeypatch.setattr(
        storage, "time", types.SimpleNamespace(sleep=lambda _: pytest.fail("waited"))
    )

    def read():
        raise error

    with pytest.raises(raised):
        storage.with_retries(read, "file", lambda _: None)
