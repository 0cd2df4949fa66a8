"""Going on with prompts, with a model whose next letter is known without any network."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.decoding.sampling import TokenSampler
from bertjax.decoding.search import Decoder
from bertjax.inference import generate
from bertjax.inference.generate import Settings

LETTERS = "abcdefghijklm"
SUCCESSOR = 50 * np.roll(np.eye(len(LETTERS), dtype=np.float32), 1, axis=1)
"""The next letter of the alphabet follows every letter."""
ANY = np.zeros_like(SUCCESSOR)
"""Every letter may follow every letter."""


class Tokenizer:
    """A token is a letter."""

    def decode(self, ids):
        return "".join(LETTERS[token] for token in ids)


def model(scores):
    """The scores of what follows a token are its row."""

    def step(cache, tokens):
        return jnp.asarray(scores)[tokens], cache

    return types.SimpleNamespace(
        tokenizer=Tokenizer(),
        params={},
        end_id=None,
        prefill=lambda params, history, room: history[:, 0],
        decoder=lambda params: Decoder(step),
    )


def texts(scores, prompts, **settings):
    """What is written after each prompt."""
    found = dict.fromkeys(range(len(prompts)), "")
    ids = [[LETTERS.index(letter) for letter in prompt] for prompt in prompts]
    for written in generate.complete(model(scores), ids, Settings(**settings)):
        found[written.prompt] += written.text
    return list(found.values())


@pytest.mark.parametrize(("stop", "wanted"), [((), "cdefg"), (("ef",), "cd"), (("z", "d"), "c")])
def test_a_prompt_is_continued_up_to_a_stop_string(stop, wanted):
    assert texts(SUCCESSOR, ["ab"], max_new_tokens=5, stop=stop) == [wanted]


def test_what_is_drawn_for_a_prompt_depends_on_its_number_and_not_on_its_batch():
    drawn = {"sampler": TokenSampler(temperature=1.0), "max_new_tokens": 7, "seed": 3}
    together = texts(ANY, ["b"] * 5, batch_size=5, **drawn)
    assert texts(ANY, ["b"] * 5, batch_size=2, **drawn) == together
    assert len(set(together)) == 5
