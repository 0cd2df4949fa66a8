"""Generate text from prompts with a causal LM, as a stream.

encode     prompts -> token ids, with all settings checked
complete   model, token ids -> a GenerationChunk for each prompt and step

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
from bertjax.decoding.search import TokenSampler
from bertjax.errors import UserError
from bertjax.inference.language_model import LanguageModel, check_length
from bertjax.interfaces import Params, Tokenizer

_UNFINISHED = "\ufffd"
"""Decoded by byte-level tokenizers for an incomplete UTF-8 character."""


class TextStream:
    """Decodes the generated tokens of one prompt to text, as a stream.

    Attributes:
      text: Text returned so far.
      finished: Whether a stop string was generated, or the stream was ended.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()):
        """Starts a stream without text.

        Args:
          tokenizer: Tokenizer of the model.
          prompt: Token ids of the prompt, which is not part of the text.
          stop: Stop strings: the text ends before the first of them.
        """
        self.text, self.finished = "", False
        self._tokenizer, self._stop = tokenizer, tuple(filter(None, stop))
        self._ids, self._start = list(prompt), len(tokenizer.decode(list(prompt)))

    def add(self, token: int, *, last: bool = False) -> str:
        """Appends a token and returns the new text that later tokens cannot change.

        Args:
          token: Token id.
          last: Whether no token follows, so that all text is returned.
        """
        self._ids.append(token)
        decoded = self._tokenizer.decode(self._ids)[self._start :]
        found = [index for index in map(decoded.find, self._stop) if index >= 0]
        if found:
            self.finished = True
            return self._emit(decoded, min(found))
        if last:
            self.finished = True
            return self._emit(decoded, len(decoded))
        return self._emit(decoded, self._stable_length(decoded))

    def end(self) -> str:
        """Ends the stream and returns the remaining text."""
        self.finished = True
        decoded = self._tokenizer.decode(self._ids)[self._start :]
        return self._emit(decoded, len(decoded))

    def _stable_length(self, decoded: str) -> int:
        """Returns the length of the prefix that later tokens cannot change or turn into a stop."""
        end = len(decoded.rstrip(_UNFINISHED))
        for stop in self._stop:
            for size in range(min(len(stop) - 1, end), 0, -1):
                if decoded[:end].endswith(stop[:size]):
                    end -= size
                    break
        return end

    def _emit(self, decoded: str, end: int) -> str:
        new = decoded[len(self.text) : end]
        self.text += new
        return new


_BUCKET = 32
"""Prompts are padded to a multiple of this, so that few lengths are compiled."""


Keys = Key[Array, " B"] | None
"""A random key for each prompt, by its index; None for greedy search."""
Generate = Callable[[Int[np.ndarray, "B P"], Keys], Iterator[Int[np.ndarray, " B"]]]
"""A function of a batch of prompts and the sampling keys that yields the tokens of each step."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of text generation.

    Attributes:
      max_new_tokens: Maximum number of generated tokens.
      sampler: Samples or selects tokens.
      num_beams: Width of beam search; 1 disables it.
      length_penalty: Exponent of the length by which log probabilities of beams are divided.
      stop: Stop strings: a text ends before the first of them.
      seed: Seed of sampling.
      batch_size: Number of prompts per batch.
    """

    max_new_tokens: int = 100
    sampler: TokenSampler = search.GREEDY
    num_beams: int = 1
    length_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    batch_size: int = 8


@dataclasses.dataclass(frozen=True)
class GenerationChunk:
    """Text generated for one prompt in one step.

    Attributes:
      prompt: Index of the prompt.
      text: New text; can be empty.
      num_tokens: Number of generated tokens.
      finished: Whether this is the last chunk of the prompt.
    """

    prompt: int
    text: str
    num_tokens: int
    finished: bool


def encode(model: LanguageModel, prompts: Sequence[str], settings: Settings) -> list[list[int]]:
    """Checks the settings and encodes prompts.

    Raises:
      UserError: a prompt is empty or too long, the beam is too wide, or settings are incompatible.
    """
    if settings.max_new_tokens < 1:
        raise UserError(f"max_new_tokens: got {settings.max_new_tokens}, expected at least 1")
    if settings.batch_size < 1:
        raise UserError(f"batch_size: got {settings.batch_size}, expected at least 1")
    beam.check_width(settings.num_beams, model.vocab_size)
    if settings.num_beams > 1 and settings.sampler.temperature:
        raise UserError(
            f"beam search does not sample: got num_beams={settings.num_beams} and temperature="
            f"{settings.sampler.temperature}; set one of the two"
        )
    encoded = model.tokenizer.encode_batch(list(prompts))
    for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True), 1):
        if not ids:
            raise UserError(f"prompt {number} is empty: got {prompt!r}, expected at least one word")
        ids[:0] = model.start_ids
        name = f"prompt {number}"
        check_length(model, len(ids), name, "shorten it")
        total, name = len(ids) + settings.max_new_tokens, f"{name} with max_new_tokens"
        check_length(model, total, name, "shorten it or lower max_new_tokens")
    return encoded


def complete(
    model: LanguageModel, prompts: Sequence[Sequence[int]], settings: Settings
) -> Iterator[GenerationChunk]:
    """Generates text for encoded prompts, batch by batch.

    The model caches compiled functions for later calls with the same settings and shapes.

    Args:
      model: The language model.
      prompts: Token ids; see `encode`.
      settings: Settings of generation.
    """
    if not prompts:
        return
    generate = _compile(model, settings)
    size = min(settings.batch_size, len(prompts))
    for first in range(0, len(prompts), size):
        group = prompts[first : first + size]
        # A short last batch is filled, so that no other shape is compiled.
        full = [*group, *[group[0]] * (size - len(group))]
        steps = generate(_pad_left(full), _keys(settings, first, size))
        yield from _decode_steps(model, group, first, steps, settings)


def _compile(model: LanguageModel, settings: Settings) -> Generate:
    # The program does not depend on these settings.
    unused = {"seed": 0, "stop": (), "batch_size": 1}
    key = dataclasses.replace(settings, **unused)
    if key not in model.compiled:
        search_for = _beam_search if settings.num_beams > 1 else _token_search
        model.compiled[key] = search_for(model, settings)
    return model.compiled[key]


def _keys(settings: Settings, first: int, size: int) -> Keys:
    if not settings.sampler.temperature:
        return None
    numbers = first + jnp.arange(size)
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(settings.seed), numbers)


def _decode_steps(
    model: LanguageModel,
    group: Sequence[Sequence[int]],
    first: int,
    steps: Iterator[Int[np.ndarray, " B"]],
    settings: Settings,
) -> Iterator[GenerationChunk]:
    """Decodes the tokens of each step to text until every prompt is finished."""
    streams = [TextStream(model.tokenizer, ids, settings.stop) for ids in group]
    for num_steps, tokens in enumerate(steps, 1):
        last = num_steps == settings.max_new_tokens
        for index, stream in enumerate(streams):
            token = int(tokens[index])
            if stream.finished:
                continue
            ends = token in (-1, model.end_id)
            text = stream.end() if ends else stream.add(token, last=last)
            yield GenerationChunk(first + index, text, int(token >= 0), stream.finished)
        if all(stream.finished for stream in streams):
            return


def _token_search(model: LanguageModel, settings: Settings) -> Generate:
    """Compiles greedy search or sampling, which yields each step while the next one is computed."""
    max_new_tokens = settings.max_new_tokens

    @jax.jit
    def init_state(params: Params, history: Int[Array, "B P"]) -> search.State:
        cache = model.prefill(params, history, max_new_tokens)
        return search.init_state(cache, history, max_new_tokens)

    @functools.partial(jax.jit, donate_argnums=1)
    def advance(params: Params, state: search.State, keys: Key[Array, " B"] | None):
        options = {"end_id": model.end_id, "sampler": settings.sampler, "keys": keys}
        state = search.advance(model.decoder(params), state, **options)
        return state, jnp.take(state.history, state.end - 1, axis=1)

    def generate(history: Int[np.ndarray, "B P"], keys: Keys) -> Iterator[Int[np.ndarray, " B"]]:
        state, newest = advance(model.params, init_state(model.params, history), keys)
        for _ in range(max_new_tokens - 1):
            previous = newest
            state, newest = advance(model.params, state, keys)
            yield np.asarray(previous)
        yield np.asarray(newest)

    return generate


def _beam_search(model: LanguageModel, settings: Settings) -> Generate:
    """Compiles beam search, which yields its steps once all tokens are generated."""

    @jax.jit
    def run(params: Params, history: Int[Array, "B P"]) -> Int[Array, "B N"]:
        return beam.search(
            model.decoder(params),
            model.prefill(params, history, settings.max_new_tokens),
            history,
            width=settings.num_beams,
            max_new_tokens=settings.max_new_tokens,
            end_id=model.end_id,
            penalty=beam.power(settings.length_penalty),
            sampler=settings.sampler,
        )[0]

    return lambda history, keys: iter(np.asarray(run(model.params, history)).T)


def _pad_left(group: Sequence[Sequence[int]]) -> Int[np.ndarray, "B P"]:
    """Left-pads prompts with -1, each by at least one column."""
    max_length = max(map(len, group)) + 1
    width = -(-max_length // _BUCKET) * _BUCKET
    rows = np.full((len(group), width), -1, np.int32)
    for row, ids in zip(rows, group, strict=True):
        row[width - len(ids) :] = ids
    return rows
