"""What runs make of raw text themselves, once for all that want it."""

import fcntl
import queue
import threading

import pytest

from bertjax.data import cache

SETTINGS = {"path": "", "kind": "wordpiece", "vocab_size": 64, "lowercase": True}


@pytest.fixture
def data(tmp_path):
    (tmp_path / "text.txt").write_text("the man went to the store\n\npenguins are birds\n" * 20)
    return {
        "input": (str(tmp_path / "text.txt"),),
        "text_format": "lines",
        "cache": str(tmp_path / "cache"),
    }


def test_a_tokenizer_is_made_once(data):
    said = []
    first = cache.tokenizer_of(data, SETTINGS, said.append)
    assert cache.tokenizer_of(data, SETTINGS, said.append) == first
    assert said == [
        "tokenizer: training wordpiece, 64 pieces",
        f"tokenizer: {first} (made by an earlier start)",
    ]


def test_of_runs_that_start_together_one_makes_it_and_the_others_wait(data, tmp_path):
    path = cache.tokenizer_of(data, SETTINGS, lambda line: None)
    elsewhere = path.rename(tmp_path / "elsewhere")
    said = queue.Queue()
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=cache.tokenizer_of, args=(data, SETTINGS, said.put))
        other.start()
        assert said.get(timeout=60) == f"waiting for another run that is making {path}"
        elsewhere.rename(path)
    other.join(timeout=60)
    assert said.get(timeout=60) == f"tokenizer: {path} (made by an earlier start)"
    assert said.empty()
