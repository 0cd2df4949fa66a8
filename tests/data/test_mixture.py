"""Mixtures of examples: shares of tokens, seeking, hosts, and evaluation of every example once."""

import itertools

import numpy as np
import pytest

from bertjax import catalog
from bertjax.corpus.mixture import MixtureEntries, phase_weights, with_temperature
from bertjax.data import mixture
from bertjax.data.mixture import JoinedExamples, MixtureExamples
from bertjax.data.pipeline import batches, evaluation_batches
from bertjax.errors import UserError

SPECIALS = {"cls_id": 10**6, "sep_id": 10**6 + 1, "pad_id": 10**6 + 2}


@pytest.fixture
def sources(memory_corpus, varied_documents):
    """Two sources of documents: long examples, and short ones of about 20 of 47 tokens."""

    def make(documents):
        corpus = memory_corpus(documents, record_tokens=150)
        examples_class = catalog.load("data/formats", "doc-sentences").Format.examples_class
        return examples_class(corpus, max_seq_length=47, seed=3, **SPECIALS)

    return {
        "long": make(varied_documents(30)),
        "short": make([[7, 11]] * 23),
        "none": make([[5]] * 2),
    }


def take(iterator, count):
    with iterator:
        return list(itertools.islice(iterator, count))


@pytest.fixture
def short_period(monkeypatch):
    monkeypatch.setattr(mixture, "PERIOD", 1000)


def test_tokens_have_the_shares_of_the_weights(sources, short_period):
    mixed = MixtureExamples(sources, (0.3, 0.7, 0.0))
    found = take(batches(mixed, batch_size=10), 250)
    short = [np.isin(batch["attention_mask"].sum(1), [20]) for _, batch in found]
    tokens = np.array([batch["attention_mask"].sum(1) for _, batch in found])
    share = tokens[np.array(short)].sum() / tokens.sum()
    assert abs(share - 0.7) < 0.02
    usage = mixed.usage(2500)
    assert usage["none"] == {"examples": 0, "tokens": 0, "epochs": 0}
    assert usage["long"]["examples"] + usage["short"]["examples"] == 2500
    assert abs(usage["short"]["tokens"] / tokens.sum() - share) < 0.02
    assert usage["short"]["epochs"] == usage["short"]["examples"] / 23


def test_each_source_goes_through_its_own_epochs(sources, short_period):
    """In a period that ends an epoch of a source, all of its examples have been used as often."""
    mixed = MixtureExamples({name: sources[name] for name in ("long", "short")}, (0.5, 0.5))
    numbers = mixed.order(0, np.arange(1000))
    assert sorted(numbers) == list(range(1000))
    count = mixed.usage(1000)["short"]["examples"]
    batch = mixed.build(0, numbers)
    used = np.bincount(batch["example_id"][batch["attention_mask"].sum(1) == 20], minlength=23)
    assert used.sum() >= count > 3 * 23
    again = mixed.build(1, mixed.order(1, np.arange(1000)))
    assert not np.array_equal(batch["example_id"], again["example_id"])
    one = MixtureExamples({"short": sources["short"]}, (1.0,))
    following = sources["short"].order(1000 // 23, np.array([1000 % 23]))
    assert one.build(1, np.zeros(1, int))["example_id"] == following
    ids = one.build(0, np.arange(1000))["example_id"]
    assert np.array_equal(np.sort(ids[:23]), np.arange(23))
    assert np.bincount(ids).max() - np.bincount(ids).min() == 1


def test_a_batch_is_a_function_of_seed_and_step_on_any_host(sources, short_period):
    """Invariant 2."""
    mixed = MixtureExamples(sources, (0.3, 0.6, 0.1))
    whole = take(batches(mixed, batch_size=14), 160)
    (step, later), *_ = take(batches(mixed, batch_size=14, start_step=151), 1)
    assert step == 151
    parts = [
        take(batches(mixed, batch_size=14, start_step=151, rows=rows), 1)[0][1]
        for rows in (slice(0, 9), slice(9, 14))
    ]
    for key, values in whole[151][1].items():
        assert np.array_equal(values, later[key])
        assert np.array_equal(values, np.concatenate([part[key] for part in parts]))


def test_evaluation_has_every_example_once(sources):
    """Invariant 8."""
    joined = JoinedExamples(list(sources.values()))
    assert joined.num_examples == sum(one.num_examples for one in sources.values())
    ids = []
    for _, batch in take(evaluation_batches(joined, batch_size=16), 10**6):
        ids += batch["example_id"][batch["example_weight"] > 0].tolist()
    assert sorted(ids) == list(range(joined.num_examples))
    first = sources["long"].num_examples
    found = joined.build(0, np.array([first + 2, 1]))["input_ids"]
    assert np.array_equal(found[0], sources["short"].build(0, np.array([2]))["input_ids"][0])
    assert np.array_equal(found[1], sources["long"].build(0, np.array([1]))["input_ids"][0])


def test_a_weight_that_is_too_small_is_refused(sources, short_period):
    with pytest.raises(UserError, match=r"got weight 1e-05 of none, expected more than one in"):
        MixtureExamples(sources, (0.5, 0.49999, 0.00001))


def test_temperature_by_hand():
    assert np.allclose(with_temperature((0.2, 0.8), 1.0), (0.2, 0.8))
    assert np.allclose(with_temperature((0.2, 0.8), 2.0), (1 / 3, 2 / 3))
    assert np.allclose(with_temperature((0.0, 0.5, 0.5), 5.0), (0, 0.5, 0.5))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((("a", "p", 0.5), ("b", "q", 0.4)), r"expected weights with the sum 1, got 0\.9"),
        ((("a", "p", (1.0, 0.5)), ("b", "q", (0.0, 0.6))), r"got 1\.1 in phase 2"),
        ((("a", "p", 0.5), ("a", "q", 0.5)), "expected different names"),
        ((("a", "p", 1.0), ("b", "q")), "expected a weight for every corpus, or for none"),
        ((("a", "p", (0.5, 1.0)), ("b", "q", (0.5, 0.0, 0.0))), "same number of weights"),
        ((("a", "p", ()),), r"expected \(NAME, PATH\), \(NAME, PATH, WEIGHT\)"),
        ((("a", "p", "half"),), r"expected \(NAME, PATH\), \(NAME, PATH, WEIGHT\)"),
        (("a",), r"expected \(NAME, PATH\)"),
    ],
)
def test_mixtures_that_do_not_add_up_are_refused(entries, message):
    import re

    assert re.search(message, MixtureEntries().violation(entries))


def test_weights_of_phases():
    constraint = MixtureEntries()
    entries = (("a", "p", (0.25, 0.5)), ("b", "q", (0.75, 0.5)))
    assert constraint.violation(entries) is None
    assert phase_weights(entries, 2) == [(0.25, 0.75), (0.5, 0.5)]
    with pytest.raises(
        UserError, match="got 2 weights for a, expected 1, or one for each of the 3"
    ):
        phase_weights(entries, 3)
    assert phase_weights((("a", "p"), ("b", "q")), 2) == [(), ()]
    assert constraint.violation((("a", "p"), ("b", "q"))) is None
    assert phase_weights((("a", "p", 1.0),), 2) == [(1.0,), (1.0,)]
