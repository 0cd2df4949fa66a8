"""Mixtures of corpora: `config.data.mixture`, and several corpora that are read as one.

    mixture = (("wiki", "corpora/wiki", 0.6), ("code", "corpora/code", 0.4))

A weight is the share of training tokens: a number, or one for each phase. Without weights it is
that of the corpus in all tokens. A temperature T replaces weights w by w^(1/T), normalised; above 1
it raises the share of small corpora (Devlin et al. 2019, multilingual BERT; Raffel et al. 2020,
section 3.5.2).
"""

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from bertjax.corpus.reader import Corpus, open_corpus, read_manifest
from bertjax.errors import UserError

_TOLERANCE = 1e-6
_EXPECTED = "expected (NAME, PATH), (NAME, PATH, WEIGHT) or (NAME, PATH, (WEIGHT OF A PHASE, ...))"


class MixtureEntries:
    """A constraint on `config.data.mixture`: names, paths, and weights that sum to 1."""

    def violation(self, value: Any) -> str | None:
        """Returns "expected ..." for an invalid mixture, else None."""
        if not isinstance(value, tuple | list) or not all(map(_is_entry, value)):
            return _EXPECTED
        if len({entry[0] for entry in value}) < len(value):
            return "expected different names"
        if len({len(entry) for entry in value}) > 1:
            return "expected a weight for every corpus, or for none"
        listed = [_weights(entry) for entry in value if len(entry) == 3]
        counts = {len(weights) for weights in listed if len(weights) > 1}
        if len(counts) > 1:
            return "expected the same number of weights for every corpus, one for each phase"
        for phase in range(max(counts, default=1) if listed else 0):
            total = sum(weights[min(phase, len(weights) - 1)] for weights in listed)
            if abs(total - 1) > _TOLERANCE:
                return f"expected weights with the sum 1, got {total:g} in phase {phase + 1}"
        return None


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, tuple | list) or len(entry) not in (2, 3):
        return False
    weights = _weights(entry) if len(entry) == 3 else (1,)
    return (
        len(weights) > 0
        and all(isinstance(text, str) and text for text in entry[:2])
        and all(
            isinstance(weight, int | float) and not isinstance(weight, bool) and 0 <= weight <= 1
            for weight in weights
        )
    )


def _weights(entry: Sequence[Any]) -> tuple[float, ...]:
    return tuple(entry[2]) if isinstance(entry[2], tuple | list) else (entry[2],)


def entries_of(data: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Returns the mixture of `config.data`; () for none, as in runs of older versions."""
    return data.get("mixture", ())


def phase_weights(mixture: Sequence[Sequence[Any]], num_phases: int) -> list[tuple[float, ...]]:
    """Returns the weights of each phase, in the order of the corpora; () without weights.

    Raises:
      UserError: there are weights for another number of phases.
    """
    if not mixture or len(mixture[0]) == 2:
        return [()] * num_phases
    listed = {entry[0]: _weights(entry) for entry in mixture}
    for name, weights in listed.items():
        if len(weights) not in (1, num_phases):
            raise UserError(
                f"config.data.mixture: got {len(weights)} weights for {name}, expected 1, or one "
                f"for each of the {num_phases} phases; change config.data.phases or the weights"
            )
    return [
        tuple(weights[phase] if len(weights) > 1 else weights[0] for weights in listed.values())
        for phase in range(num_phases)
    ]


def with_temperature(weights: Sequence[float], temperature: float) -> np.ndarray:
    """Returns w^(1/T), normalised; a weight of 0 stays 0."""
    logs = [math.log(weight) / temperature if weight else -math.inf for weight in weights]
    powers = np.exp(np.array(logs) - max(logs))
    return powers / powers.sum()


class MixedCorpus:
    """One split of several corpora.

    Attributes:
      parts: The splits by the corpora's names, in the order of the config.
      held_out: Whether each example is used once, in place of the shares of a mixture.
      fingerprint: SHA-256 of the names and fingerprints of the parts.
    """

    def __init__(self, parts: Mapping[str, Corpus], *, held_out: bool = False):
        self.parts, self.held_out = dict(parts), held_out
        content = [[name, part.fingerprint] for name, part in self.parts.items()]
        self.fingerprint = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def path(self) -> str:
        """The folders of the corpora, for display."""
        return " + ".join(str(part.path) for part in self.parts.values())

    @property
    def num_documents(self) -> int:
        return sum(part.num_documents for part in self.parts.values())

    @property
    def num_tokens(self) -> int:
        return sum(part.num_tokens for part in self.parts.values())

    @functools.cached_property
    def token_counts(self) -> Int[np.ndarray, " V"]:
        """Number of occurrences of each token id in all parts."""
        return np.sum([part.token_counts for part in self.parts.values()], axis=0)


def open_mixture(mixture: Sequence[Sequence[Any]]) -> tuple[MixedCorpus, MixedCorpus | None]:
    """Opens the training splits of all corpora, and the held-out splits of those that have one.

    Raises:
      UserError: one of the corpora does not exist, is empty, or has another tokenizer than the
        first; the message names it.
    """
    parts, held_out = {}, {}
    for name, path, *_ in mixture:
        try:
            parts[name] = open_corpus(path)
            if "validation" in read_manifest(path)["splits"]:
                held_out[name] = open_corpus(path, "validation")
        except UserError as error:
            raise UserError(f"config.data.mixture, {name}: {error}") from None
    first, *rest = parts
    expected = parts[first].manifest["tokenizer"]["fingerprint"]
    for name in rest:
        found = parts[name].manifest["tokenizer"]["fingerprint"]
        if found != expected:
            raise UserError(
                f"config.data.mixture: got tokenizer {found[:16]} of {name}, expected "
                f"{expected[:16]} of {first}; prepare both corpora with one tokenizer"
            )
    return MixedCorpus(parts), MixedCorpus(held_out, held_out=True) if held_out else None
