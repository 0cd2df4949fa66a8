"""A local server with the subset of Google Cloud Storage's JSON API that the clients here use.

`STORAGE_EMULATOR_HOST` and `TENSORSTORE_GCS_HTTP_URL` select it in the clients. It can
fail for a number of requests, or refuse all.
"""

import contextlib
import itertools
import json
import re
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/?]+)/o/([^/?]+)$")
LIST = re.compile(r"/storage/v1/b/([^/?]+)/o$")
BUCKET = re.compile(r"/storage/v1/b/([^/?]+)$")
REWRITE = re.compile(r"/storage/v1/b/([^/?]+)/o/([^/?]+)/rewriteTo/b/([^/?]+)/o/([^/?]+)$")
MOVE = re.compile(r"/storage/v1/b/([^/?]+)/o/([^/?]+)/moveTo/o/([^/?]+)$")
UPLOAD = re.compile(r"/upload/storage/v1/b/([^/?]+)/o$")


def forget_clients() -> None:
    """Drop cached clients, which would keep connecting to an earlier server."""
    import fsspec
    from etils.epath import backend

    backend.fsspec_backend._get_filesystem.cache_clear()
    for protocol in ("gs", "s3"):
        with contextlib.suppress(ImportError):
            fsspec.get_filesystem_class(protocol).clear_instance_cache()


class BucketServer(ThreadingHTTPServer):
    """Buckets in memory, on a free port of the loopback.

    Attributes:
      objects: (bucket, name) -> (content, generation).
      refused: Buckets to which access is denied.
      failures: The number of next requests for an object's content that are answered with 503.
      requests: (method, path) of all of them.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.refused: set[str] = set()
        self.failures = 0
        self.requests: list[tuple[str, str]] = []
        self.uploads: dict[str, tuple[str, str, bytearray]] = {}
        self.lock = threading.Lock()
        self._generations = itertools.count(1)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point clients to this server."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def names(self, bucket: str) -> list[str]:
        return sorted(name for holder, name in self.objects if holder == bucket)

    def put(self, bucket: str, name: str, content: bytes) -> dict:
        with self.lock:
            self.objects[bucket, name] = bytes(content), next(self._generations)
        return self.metadata(bucket, name)

    def content(self, bucket: str, name: str) -> bytes:
        return self.objects[bucket, name][0]

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def metadata(self, bucket: str, name: str) -> dict:
        content, generation = self.objects[bucket, name]
        minutes, seconds = divmod(generation, 60)
        time = f"2026-01-01T00:{minutes:02d}:{seconds:02d}.000Z"
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(len(content)),
            "generation": str(generation),
            "metageneration": "1",
            "storageClass": "STANDARD",
            "timeCreated": time,
            "updated": time,
        }

    def handle_error(self, request, client_address) -> None:
        """Ignore errors of closed connections: tests kill clients."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BucketServer

    def log_message(self, *_) -> None:
        pass

    def do_GET(self):
        path, query = self._asked()
        if match := LIST.match(path):
            return self._if_allowed(match[1]) and self._list(match[1], query)
        if match := OBJECT.match(path):
            bucket, name = match[1], urllib.parse.unquote(match[2])
            return self._if_allowed(bucket) and self._get(bucket, name, query)
        if match := BUCKET.match(path):
            metadata = {"kind": "storage#bucket", "name": match[1], "location": "HERE"}
            return self._if_allowed(match[1]) and self._answer(200, metadata)
        return self._answer(404, {})

    def do_POST(self):
        path, query = self._asked()
        body = self._body()
        if path.startswith("/batch/storage/v1"):
            return self._batch(body)
        if path.startswith("/resumable/"):
            return self._take(path.rpartition("/")[2], body)
        if match := REWRITE.match(path):
            return self._if_allowed(match[1]) and self._rewrite(
                *map(urllib.parse.unquote, match.groups())
            )
        if match := MOVE.match(path):
            return self._if_allowed(match[1]) and self._move(
                *map(urllib.parse.unquote, match.groups())
            )
        match = UPLOAD.match(path)
        if not match or not self._if_allowed(match[1]):
            return None if match else self._answer(501, {})
        kind, name = query["uploadType"], query.get("name", "")
        if kind == "resumable":
            token = str(len(self.server.uploads))
            self.server.uploads[token] = match[1], name or json.loads(body)["name"], bytearray()
            location = f"{self.server.url}/resumable/{token}"
            return self._answer(200, {}, {"Location": location})
        if kind == "multipart":
            name, body = _parts(self.headers["Content-Type"], body)
        return self._answer(200, self.server.put(match[1], name, body))

    def _rewrite(self, bucket: str, name: str, other: str, new: str) -> None:
        metadata = self.server.put(other, new, self.server.content(bucket, name))
        self._answer(200, {"kind": "storage#rewriteResponse", "done": True, "resource": metadata})

    def _move(self, bucket: str, name: str, new: str) -> None:
        content = self.server.content(bucket, name)
        del self.server.objects[bucket, name]
        self._answer(200, self.server.put(bucket, new, content))

    def do_PUT(self):
        path, _ = self._asked()
        self._take(path.rpartition("/")[2], self._body())

    def _take(self, token: str, body: bytes) -> None:
        """Append a piece of an upload; the last piece states the total size."""
        bucket, name, content = self.server.uploads[token]
        content += body
        total = self.headers.get("Content-Range", "*/*").rpartition("/")[2]
        if total == "*" and "Content-Range" in self.headers:
            self._answer(308, {}, {"Range": f"bytes=0-{len(content) - 1}"})
        else:
            self._answer(200, self.server.put(bucket, name, content))

    def do_DELETE(self):
        path, _ = self._asked()
        match = OBJECT.match(path)
        if self._if_allowed(match[1]):
            gone = self.server.objects.pop((match[1], urllib.parse.unquote(match[2])), None)
            self._answer(204 if gone else 404, None)

    def _asked(self) -> tuple[str, dict[str, str]]:
        self.server.requests.append((self.command, self.path))
        path, _, query = self.path.partition("?")
        return path, dict(urllib.parse.parse_qsl(query))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _if_allowed(self, bucket: str) -> bool:
        if bucket in self.server.refused:
            error = {"code": 403, "message": "the caller has no storage.objects.get access"}
            self._answer(403, {"error": error})
            return False
        return True

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, prefixes = [], {}
        for name in self.server.names(bucket):
            if not name.startswith(prefix):
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                prefixes[prefix + head + delimiter] = None
            else:
                items.append(self.server.metadata(bucket, name))
        self._answer(200, {"kind": "storage#objects", "items": items, "prefixes": [*prefixes]})

    def _get(self, bucket: str, name: str, query: dict[str, str]) -> None:
        found = self.server.objects.get((bucket, name))
        if found is None:
            return self._answer(404, {"error": {"code": 404, "message": "no such object"}})
        content, generation = found
        if query.get("alt") != "media":
            return self._answer(200, self.server.metadata(bucket, name))
        if self.server.failures:
            self.server.failures -= 1
            return self._answer(503, {"error": {"code": 503, "message": "try again"}})
        headers = {
            "x-goog-generation": str(generation),
            "x-goog-stored-content-length": str(len(content)),
        }
        span = re.match(r"bytes=(\d*)-(\d*)$", self.headers.get("Range", ""))
        if span is None:
            return self._answer(200, content, headers)
        begin, end = span[1], span[2]
        first = int(begin) if begin else max(0, len(content) - int(end))
        last = min(int(end) if end and begin else len(content), len(content) - 1)
        if first >= len(content):
            return self._answer(416, {})
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return self._answer(206, content[first : last + 1], headers)

    def _batch(self, body: bytes) -> None:
        """Only deletions are sent in batches."""
        boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1]
        parts = re.findall(rb"DELETE (\S+) HTTP", body)
        answers = []
        for number, part in enumerate(parts, start=1):
            path = urllib.parse.urlparse(part.decode()).path
            match = OBJECT.match(path)
            self.server.objects.pop((match[1], urllib.parse.unquote(match[2])), None)
            answers.append(
                f"--{boundary}\r\nContent-Type: application/http\r\n"
                f"Content-ID: <response-{number}>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n\r\n"
            )
        content = "".join([*answers, f"--{boundary}--\r\n"]).encode()
        self._answer(200, content, {"Content-Type": f"multipart/mixed; boundary={boundary}"})

    def _answer(self, status: int, content, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else b""
        kind = "application/octet-stream"
        if content is not None and not isinstance(content, bytes):
            body, kind = json.dumps(content).encode(), "application/json"
        self.send_response(status)
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # A client that has seen enough hangs up.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)


def _parts(content_type: str, body: bytes) -> tuple[str, bytes]:
    """Split a multipart upload into its name and content: JSON, then raw bytes."""
    boundary = re.search(r'boundary="?([^";]+)', content_type)[1].encode()
    # Clients end lines with \r\n or \n, and the content may itself end with \r.
    end = b"\r\n" if b"--" + boundary + b"\r\n" in body else b"\n"
    _, metadata, content, _ = re.split(rb"(?:" + end + rb")?--" + re.escape(boundary), body)
    (metadata, content) = (part.partition(end + end)[2] for part in (metadata, content))
    return json.loads(metadata)["name"], content
