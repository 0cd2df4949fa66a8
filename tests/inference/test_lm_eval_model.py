"""Requests of lm-evaluation-harness: scored tokens, truncation on the left, options of generation.

The harness is replaced by its base class, except in the last test.
"""

import sys
import types

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.inference import generate, lm_eval_model


class Letters:
    def encode_batch(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


def score_tokens(params, ids, attention_mask):
    """The log probability of a token is minus its id; even ids are the most likely."""
    return -np.asarray(ids)[:, 1:].astype(float), np.asarray(ids)[:, 1:] % 2 == 0


def requests(*arguments):
    return [types.SimpleNamespace(args=each) for each in arguments]


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", types.ModuleType("lm_eval"))
    monkeypatch.setitem(sys.modules, "lm_eval.api", types.ModuleType("lm_eval.api"))
    base = types.SimpleNamespace(LM=object)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", base)


@pytest.fixture
def loaded(monkeypatch):
    model = types.SimpleNamespace(
        tokenizer=Letters(),
        end_id=1,
        start_ids=[1],
        max_length=6,
        train_length=6,
        params=None,
        score_tokens=score_tokens,
    )
    monkeypatch.setattr(lm_eval_model.run_cache, "find_run", lambda name: f"found {name}")
    loadable = {"found run": model}
    monkeypatch.setattr(lm_eval_model.language_model, "load", lambda run, _: loadable[run])
    return model


def ids_of(text):
    return sum(map(ord, text))


def test_the_continuation_is_scored(harness, loaded):
    model = lm_eval_model.lm_eval_model("run", batch_size=2)
    found = model.loglikelihood(
        requests(("ab", "d"), ("", "bd"), ("a ", "d"), ("abcdefgh", "xyz"), ("a", "bcdefgh"))
    )
    # Trailing spaces are scored; of long texts the end is kept, and its first token is context.
    scored = ["d", "bd", " d", "xyz", "defgh"]
    assert found == [(-ids_of(text), all(ord(each) % 2 == 0 for each in text)) for text in scored]


def test_every_token_of_a_text_is_scored_once(harness, loaded):
    model = lm_eval_model.lm_eval_model("run", batch_size=4)
    texts = ["abcdefghijklmnopq", "xy", "é"]
    found = model.loglikelihood_rolling(requests(*((text,) for text in texts)))
    assert found == [-ids_of(text) for text in texts]
    loaded.end_id = None
    assert model.loglikelihood_rolling(requests(("xyz",))) == [-ids_of("yz")]


@pytest.fixture
def counting(loaded):
    """The score of a token is the number of tokens before it."""
    loaded.score_tokens = lambda params, ids, mask: (
        np.broadcast_to(np.arange(1, ids.shape[1]), (len(ids), ids.shape[1] - 1)),
        np.asarray(ids)[:, 1:] > 0,
    )
    return loaded


def test_the_last_window_of_a_text_has_the_full_length(harness, counting):
    """As in `get_rolling_token_windows` of the harness."""
    model = lm_eval_model.lm_eval_model("run", batch_size=4)
    found = model.loglikelihood_rolling(requests(("abcde",), ("abcdefgh",), ("abcdefghijkl",)))
    first = 1 + 2 + 3 + 4 + 5
    assert found == [first, first + 3 + 4 + 5, 2 * first + 4 + 5]


@pytest.mark.parametrize(("start_ids", "expected"), [([1], [3, 1 + 2]), ([], [2, 1 + 2])])
def test_no_token_precedes_the_context_of_an_imported_model(harness, counting, start_ids, expected):
    counting.start_ids = start_ids
    model = lm_eval_model.lm_eval_model("run", batch_size=2)
    found = model.loglikelihood(requests(("ab", "d"), ("", "bd")))
    assert [score for score, _ in found] == expected


def test_options_of_generation(harness, loaded, monkeypatch):
    calls = []

    def complete(model, prompts, settings):
        calls.append((prompts, settings))
        yield generate.GenerationChunk(0, "par", 1, False)
        yield generate.GenerationChunk(0, "is", 2, True)

    monkeypatch.setattr(lm_eval_model.generate, "complete", complete)
    model = lm_eval_model.lm_eval_model("run")
    sampled = {"until": ["\n", "."], "max_gen_toks": 3, "do_sample": True, "temperature": 0.5}
    assert model.generate_until(
        requests(("abcd", {"until": "Q", "max_gen_toks": 4, "temperature": 0.7}), ("a", sampled))
    ) == ["paris", "paris"]
    (greedy_prompts, greedy), (prompts, settings) = calls
    assert (greedy_prompts, prompts) == ([[ord("c"), ord("d")]], [[1, ord("a")]])
    assert (greedy.stop, greedy.max_new_tokens, greedy.sampler.temperature) == (("Q",), 4, 0)
    assert (settings.stop, settings.sampler.temperature) == (("\n", "."), 0.5)
    with pytest.raises(UserError, match="max_gen_toks: got 256, expected less than the 6"):
        model.generate_until(requests(("a", {})))


def test_without_the_harness_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(UserError, match=r"pip install 'bertjax\[lm-eval\]'"):
        lm_eval_model.lm_eval_model("run")


@pytest.mark.slow
def test_lm_eval_model_is_a_model_of_the_harness(loaded):
    base = pytest.importorskip("lm_eval.api.model", reason="the extra `lm-eval`")
    assert isinstance(lm_eval_model.lm_eval_model("run"), base.LM)
