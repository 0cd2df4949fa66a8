"""Tokenizers and corpora made from raw text are cached and reused."""

import fcntl
import json
import queue
import threading

import pytest

from bertjax.corpus import cache

SETTINGS = {"path": "", "kind": "wordpiece", "vocab_size": 64, "lowercase": True}


@pytest.fixture
def data(tmp_path):
    (tmp_path / "text.txt").write_text("the man went to the store\n\npenguins are birds\n" * 20)
    return {
        "input": (str(tmp_path / "text.txt"),),
        "text_format": "lines",
        "cache": str(tmp_path / "cache"),
    }


def test_a_tokenizer_is_trained_once(data):
    output = []
    first = cache.get_or_train_tokenizer(data, SETTINGS, output.append)
    assert cache.get_or_train_tokenizer(data, SETTINGS, output.append) == first
    assert output == [
        "tokenizer: training wordpiece, vocabulary of 64",
        f"tokenizer: {first} (cached)",
    ]


def test_the_text_field_is_part_of_the_key_where_it_is_set(data, tmp_path):
    rows = [json.dumps({"text": "penguins swim", "body": "the man went"})] * 30
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    data |= {"input": (str(tmp_path / "rows.jsonl"),), "text_format": "auto"}
    folders = [
        cache.get_or_train_tokenizer(data | field, SETTINGS, lambda line: None)
        for field in ({}, {"text_field": ""}, {"text_field": "body"})
    ]
    assert folders[0] == folders[1] != folders[2]
    pieces = [(folder / "vocab.txt").read_text() for folder in folders]
    assert "penguins" in pieces[0]
    assert "penguins" not in pieces[2]
    assert "man" in pieces[2]


def test_of_concurrent_runs_one_trains_and_the_others_wait(data, tmp_path):
    path = cache.get_or_train_tokenizer(data, SETTINGS, lambda line: None)
    elsewhere = path.rename(tmp_path / "elsewhere")
    output = queue.Queue()
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(
            target=cache.get_or_train_tokenizer, args=(data, SETTINGS, output.put)
        )
        other.start()
        assert output.get(timeout=60) == f"waiting for another run that is writing {path}"
        elsewhere.rename(path)
    other.join(timeout=60)
    assert output.get(timeout=60) == f"tokenizer: {path} (cached)"
    assert output.empty()
