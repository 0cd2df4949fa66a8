"""Generate text from prompts with a causal LM, streamed or all at once.

complete   model, prompts -> a GenerationChunk for every step with new text, prompts in any order

Streamed text never contains a partial character, nor a part of a stop string.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from bertjax.decoding import beam, search
from bertjax.decoding.sampling import TokenSampler
from bertjax.errors import UserError
from bertjax.inference.language_model import LanguageModel, check_length
from bertjax.interfaces import Params, Tokenizer

_UNFINISHED = "\ufffd"
"""What a decoder puts where the bytes of a character are not all there."""


class TextStream:
    """What follows a prompt.

    Attributes:
      text: What was given out.
      finished: Whether a stop string came, or the end.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()):
        """Begins with nothing.

        Args:
          tokenizer: Of the tokens.
          prompt: Tokens that come before, and are not part of the text.
          stop: The text ends before the first of these.
        """
        self.text, self.finished = "", False
        self._tokenizer, self._stop = tokenizer, tuple(filter(None, stop))
        self._ids, self._begin = list(prompt), len(tokenizer.decode(list(prompt)))

    def add(self, token: int, *, last: bool = False) -> str:
        """Takes a token and gives the text that is certain now; `last` holds nothing back."""
        self._ids.append(token)
        known = self._tokenizer.decode(self._ids)[self._begin :]
        found = [at for at in map(known.find, self._stop) if at >= 0]
        if found:
            self.finished = True
            return self._up_to(known, min(found))
        if last:
            self.finished = True
            return self._up_to(known, len(known))
        return self._up_to(known, self._certain(known))

    def end(self) -> str:
        """Gives what was held back."""
        self.finished = True
        known = self._tokenizer.decode(self._ids)[self._begin :]
        return self._up_to(known, len(known))

    def _certain(self, known: str) -> int:
        """How much of a text no further token can change or make part of a stop string."""
        end = len(known.rstrip(_UNFINISHED))
        for stop in self._stop:
            for size in range(min(len(stop) - 1, end), 0, -1):
                if known[:end].endswith(stop[:size]):
                    end -= size
                    break
        return end

    def _up_to(self, known: str, end: int) -> str:
        new = known[len(self.text) : end]
        self.text += new
        return new


_BUCKET = 32
"""Prompts are padded to a multiple of this, so that few lengths have to be compiled."""


Follow = Callable[[Int[np.ndarray, "B P"], int], Iterator[Int[np.ndarray, " B"]]]
"""From a batch of prompts and the number of its first to the tokens of each step."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How prompts are gone on with.

    Attributes:
      max_new_tokens: Tokens that are added at most.
      sampler: How a token is chosen.
      beams: Candidates of a beam search; 1 for none.
      length_penalty: Power of the length by which log probabilities of beams are divided.
      stop: A text ends before any of these.
      seed: Of all draws.
      batch_size: Prompts at a time.
    """

    max_new_tokens: int = 100
    sampler: TokenSampler = search.GREEDY
    beams: int = 1
    length_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    batch_size: int = 8


@dataclasses.dataclass(frozen=True)
class GenerationChunk:
    """What one step added to one prompt.

    Attributes:
      prompt: Its number.
      text: New text, perhaps none.
      tokens: How many tokens were made for it.
      finished: Whether nothing more will come.
    """

    prompt: int
    text: str
    tokens: int
    finished: bool


def encode(model: LanguageModel, prompts: Sequence[str], settings: Settings) -> list[list[int]]:
    """The tokens of prompts, once everything is known to fit.

    Raises:
      UserError: a prompt is empty or too long, a beam too wide, or settings contradict each other.
    """
    if settings.max_new_tokens < 1:
        raise UserError(f"max_new_tokens={settings.max_new_tokens}: expected 1 or more")
    if settings.batch_size < 1:
        raise UserError(f"batch_size={settings.batch_size}: expected 1 or more")
    beam.check_width(settings.beams, model.vocab_size)
    if settings.beams > 1 and settings.sampler.temperature:
        raise UserError(
            f"beams={settings.beams} look for the most likely text, temperature="
            f"{settings.sampler.temperature} draws one: set one of the two"
        )
    encoded = model.tokenizer.encode_batch(list(prompts))
    for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True), 1):
        if not ids:
            raise UserError(f"prompt {number} is empty ({prompt!r}): give it at least a word")
        ids[:0] = model.beginning
        what = f"prompt {number}"
        check_length(model, len(ids), what, "shorten it")
        total, what = len(ids) + settings.max_new_tokens, f"{what} with max_new_tokens"
        check_length(model, total, what, "shorten it or lower --max_new_tokens")
    return encoded


def complete(
    model: LanguageModel, prompts: Sequence[Sequence[int]], settings: Settings
) -> Iterator[GenerationChunk]:
    """Goes on with encoded prompts, batch after batch."""
    follow = (_by_beams if settings.beams > 1 else _by_tokens)(model, settings)
    size = min(settings.batch_size, len(prompts))
    for first in range(0, len(prompts), size):
        group = prompts[first : first + size]
        # A short last batch is filled up: no other shape has to be compiled for it.
        full = [*group, *[group[0]] * (size - len(group))]
        yield from _write(model, group, first, follow(_padded(full), first), settings)


def _write(
    model: LanguageModel,
    group: Sequence[Sequence[int]],
    first: int,
    steps: Iterator[Int[np.ndarray, " B"]],
    settings: Settings,
) -> Iterator[GenerationChunk]:
    """Makes text of tokens; ends when every prompt has."""
    streams = [TextStream(model.tokenizer, ids, settings.stop) for ids in group]
    for made, tokens in enumerate(steps, 1):
        last = made == settings.max_new_tokens
        for number, stream in enumerate(streams):
            token = int(tokens[number])
            if stream.finished:
                continue
            ends = token in (-1, model.end_id)
            text = stream.end() if ends else stream.add(token, last=last)
            yield GenerationChunk(first + number, text, int(token >= 0), stream.finished)
        if all(stream.finished for stream in streams):
            return


def _by_tokens(model: LanguageModel, settings: Settings) -> Follow:
    """Gives the tokens of each step; the device makes the next ones while these are looked at."""
    room = settings.max_new_tokens

    @jax.jit
    def begin(params: Params, history: Int[Array, "B P"]) -> search.State:
        return search.init_state(model.begin(params, history, room), history, room)

    @functools.partial(jax.jit, donate_argnums=1)
    def advance(params: Params, state: search.State, keys: Key[Array, " B"] | None):
        options = {"end_id": model.end_id, "sampler": settings.sampler, "keys": keys}
        state = search.advance(model.decoder(params), state, **options)
        return state, jnp.take(state.history, state.end - 1, axis=1)

    def follow(history: Int[np.ndarray, "B P"], first: int) -> Iterator[Int[np.ndarray, " B"]]:
        keys = None
        if settings.sampler.temperature:
            numbers = first + jnp.arange(len(history))
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(settings.seed), numbers)
        state, newest = advance(model.params, begin(model.params, history), keys)
        for _ in range(room - 1):
            waiting = newest
            state, newest = advance(model.params, state, keys)
            yield np.asarray(waiting)
        yield np.asarray(newest)

    return follow


def _by_beams(model: LanguageModel, settings: Settings) -> Follow:
    """Gives the tokens of the best continuations, which are known all at once."""

    @jax.jit
    def run(params: Params, history: Int[Array, "B P"]) -> Int[Array, "B N"]:
        return beam.search(
            model.decoder(params),
            model.begin(params, history, settings.max_new_tokens),
            history,
            width=settings.beams,
            max_new_tokens=settings.max_new_tokens,
            end_id=model.end_id,
            penalty=beam.power(settings.length_penalty),
            sampler=settings.sampler,
        )[0]

    return lambda history, first: iter(np.asarray(run(model.params, history)).T)


def _padded(group: Sequence[Sequence[int]]) -> Int[np.ndarray, "B P"]:
    """Prompts with -1 before those that are shorter, and before all of them."""
    max_length = max(map(len, group)) + 1
    width = -(-max_length // _BUCKET) * _BUCKET
    rows = np.full((len(group), width), -1, np.int32)
    for row, ids in zip(rows, group, strict=True):
        row[width - len(ids) :] = ids
    return rows
