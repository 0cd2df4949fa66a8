"""Text generation, with a model whose next letter is given by a table."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.decoding.search import Decoder, TokenSampler
from bertjax.inference import generate
from bertjax.inference.generate import Settings

LETTERS = "abcdefghijklm"
SUCCESSOR = 50 * np.roll(np.eye(len(LETTERS), dtype=np.float32), 1, axis=1)
"""The next letter of the alphabet follows every letter."""
ANY = np.zeros_like(SUCCESSOR)
"""Every letter may follow every letter."""


class Tokenizer:
    """A tokenizer of single letters."""

    def decode(self, ids):
        return "".join(LETTERS[token] for token in ids)


def model(scores):
    """A model whose logits after a token are a row of a table."""

    def step(cache, tokens):
        return jnp.asarray(scores)[tokens], cache

    return types.SimpleNamespace(
        tokenizer=Tokenizer(),
        params={},
        end_id=None,
        compiled={},
        prefill=lambda params, history, room: history[:, 0],
        decoder=lambda params: Decoder(step),
    )


def texts(scores, prompts, **settings):
    """The generated text of each prompt."""
    found = dict.fromkeys(range(len(prompts)), "")
    ids = [[LETTERS.index(letter) for letter in prompt] for prompt in prompts]
    for written in generate.complete(model(scores), ids, Settings(**settings)):
        found[written.prompt] += written.text
    return list(found.values())


@pytest.mark.parametrize(("stop", "expected"), [((), "cdefg"), (("ef",), "cd"), (("z", "d"), "c")])
def test_a_prompt_is_continued_up_to_a_stop_string(stop, expected):
    assert texts(SUCCESSOR, ["ab"], max_new_tokens=5, stop=stop) == [expected]
    assert texts(SUCCESSOR, []) == []


def test_samples_depend_on_the_index_of_the_prompt_not_on_its_batch():
    options = {"sampler": TokenSampler(temperature=1.0), "max_new_tokens": 7, "seed": 3}
    together = texts(ANY, ["b"] * 5, batch_size=5, **options)
    assert texts(ANY, ["b"] * 5, batch_size=2, **options) == together
    assert len(set(together)) == 5


def test_later_calls_compile_nothing_unless_the_program_changes():
    shared, traced = model(ANY), []
    decoder = shared.decoder
    shared.decoder = lambda params: (traced.append(params), decoder(params))[1]
    sampler = TokenSampler(temperature=1.0)

    def sample(**settings):
        settings = Settings(max_new_tokens=5, sampler=sampler, **settings)
        return "".join(each.text for each in generate.complete(shared, [[1]], settings))

    first = sample(seed=1)
    assert len(traced) == 1
    assert sample(seed=2) != first
    assert sample(seed=1, stop=(first[2],)) == first[: first.index(first[2])]
    assert sample(seed=1, batch_size=3) == first
    assert len(traced) == 1
    sampler = TokenSampler(temperature=1.0, top_k=1)
    sample()
    assert len(traced) == 2
