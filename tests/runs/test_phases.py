"""Phases of one length continue the order of the examples; a growing batch repeats none."""

import itertools

import numpy as np
import pytest

from bertjax.build import Phase
from bertjax.config import load_config
from bertjax.data import mixture, pipeline
from bertjax.data.mixture import MixtureExamples
from bertjax.runs.examples import continued_phases

PHASES = (Phase(10, 32, 8, 1), Phase(5, 32, 16, 1), Phase(3, 64, 8, 1), Phase(2, 32, 8, 1))


class Numbers:
    """Examples that are their numbers, in order; `source` is a second array of the batch."""

    seed, max_seq_length, num_examples = 0, 4, 10**6

    def __init__(self, source=0):
        self.source = source

    def order(self, epoch, rank):
        return rank

    def build(self, epoch, example):
        source = np.full(len(example), self.source)
        mask = np.ones((len(example), 4), bool)
        return {"example_id": example, "source": source, "attention_mask": mask}


def read(config, make, phases=PHASES):
    """The batches of all phases."""
    found = [
        pipeline.Phase(phase.steps, examples, phase.batch_size, None, position)
        for phase, examples, position in continued_phases(config, phases, make)
    ]
    with pipeline.phased_batches(found) as batches:
        return [batch for _, batch in itertools.islice(batches, sum(p.steps for p in phases))]


@pytest.fixture(scope="module")
def config():
    return load_config("bert:tiny", {"data.phases": (), "data.format": "packed-documents"})


def test_a_phase_of_the_same_length_goes_on(config):
    batches = read(config, lambda phase, skipped: Numbers())
    numbers = [batch["example_id"].tolist() for batch in batches]
    assert np.concatenate(numbers[:15]).tolist() == list(range(160))
    assert np.concatenate(numbers[15:18]).tolist() == list(range(24))
    assert np.concatenate(numbers[18:]).tolist() == list(range(160, 176))


def test_continued_rows_start_anew_with_another_batch_size(config):
    stream = load_config("gpt2:tiny", {"data.phases": (), "data.format": "stream"})
    phases = (PHASES[0], PHASES[1], Phase(4, 32, 8, 1))
    found = continued_phases(stream, phases, lambda phase, skipped: Numbers())
    assert [position for *_, position in found] == [0, 0, 80]


def test_each_corpus_of_a_mixture_goes_on_with_other_weights(config, monkeypatch):
    monkeypatch.setattr(mixture, "PERIOD", 20)
    mixed = config.copy_and_resolve_references()
    mixed.data.mixture = (("a", "p", (0.5, 0.2)), ("b", "q", (0.5, 0.8)))
    weights = iter([(0.5, 0.5), (0.2, 0.8)])
    sources = {"a": Numbers(0), "b": Numbers(1)}

    def make(phase, skipped):
        return MixtureExamples(sources, next(weights), skipped)

    batches = read(mixed, make, PHASES[:2])
    ids, source = (np.concatenate([b[name] for b in batches]) for name in ("example_id", "source"))
    for number, count in enumerate((40 + 16, 40 + 64)):
        assert sorted(ids[source == number].tolist()) == list(range(count))
