"""Buckets without a network or without access: errors at once, in one line."""

import logging
import socket
import time
import types

import pytest

from bertjax.errors import UserError
from bertjax.io import inputs, storage


def test_a_host_that_has_no_address_fails_at_once(monkeypatch):
    def fail(host, port):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    for name in ("STORAGE_EMULATOR_HOST", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    storage._resolve_host.cache_clear()
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it is tried again"))
    with pytest.raises(UserError, match=r"gs://b: cannot resolve the host storage\.google.*: Name"):
        storage.check_host("gs://b")


def test_a_file_without_access_is_not_reported_as_missing(monkeypatch):
    def refuse(path):
        raise PermissionError("no credentials")

    client = types.SimpleNamespace(info=refuse, isfile=lambda path: False)
    monkeypatch.setattr(inputs, "_client", lambda url: (client, "b/x"))
    with pytest.raises(UserError, match="access to gs://b/x is denied: no credentials"):
        inputs.find_urls("gs://b/x")


def test_the_client_logs_no_traceback(caplog):
    try:
        raise TimeoutError("slow")
    except TimeoutError:
        logging.getLogger("gcsfs").exception("out of retries")
    assert "out of retries" in caplog.text
    assert "Traceback" not in caplog.text
