"""Rows of the format packed-documents: texts have the outputs and losses that they have alone."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build, catalog
from bertjax.config import load_config
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.layers import masking
from bertjax.pretrainer import Pretrainer
from bertjax.runs import examples

packed_documents = importlib.import_module("bertjax.data.formats.packed-documents")
CLS, SEP, PAD = 2, 3, 0
SMALL = {
    **{"vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3},
    **{"intermediate_size": 20, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    **{"precision": "float32", "initializer_range": 0.5},
}
MODELS = {
    "bert": {"position_initializer": "normal"},
    "albert": {"embedding_size": 8},
    "xlnet": {},
    "deberta": {"position_biased_input": True, "position_buckets": 4},
    "modernbert": {"num_hidden_layers": 3, "local_attention": 6},
    "neobert": {},
    "mosaicbert": {},
    "crammed_bert": {},
    "gpt_bert": {},
}


@pytest.fixture
def batch(memory_corpus):
    """Rows of up to 16 tokens; token ids from 5 on."""
    corpus = memory_corpus([[3], [2, 2], [5], [9, 4], [1], [2], [21]], record_tokens=30)
    read = corpus.read
    corpus.read = lambda records: [
        np.where(np.arange(len(one)) < size, 5 + one % 30, one).astype(corpus.dtype).tobytes()
        for raw, size in zip(read(records), corpus.tokens[records], strict=True)
        for one in [np.frombuffer(raw, corpus.dtype)]
    ]
    specials = SequenceTemplate(CLS, SEP, PAD)
    word_starts = np.arange(40) % 3 > 0
    packed = packed_documents.PackedDocuments(
        corpus, max_seq_length=16, seed=1, specials=specials, word_starts=word_starts
    )
    return packed.build(0, np.arange(packed.num_examples))


QUICK = ("bert", "modernbert")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS],
)
def test_texts_of_a_row_have_the_outputs_that_they_have_alone(batch, name):
    """Invariant 7."""
    module = catalog.load("models", name).Model
    known = {
        field: value
        for field, value in SMALL.items()
        if field in build.model_fields({"name": name})
    }
    model = module(**known | MODELS[name])
    rows = {key: jnp.asarray(values) for key, values in batch.items() if key != "example_id"}
    variables = model.init(jax.random.key(0), rows, train=False)
    apply = jax.jit(lambda rows: model.apply(variables, rows, train=False).sequence)
    together = np.asarray(apply(rows))
    pack_ids = batch["pack_ids"]
    assert pack_ids.max() > 2
    alone = {key: np.zeros_like(batch[key]) for key in ("input_ids", "segment_ids")}
    alone["attention_mask"] = np.zeros_like(pack_ids, bool)
    for pack in range(1, pack_ids.max() + 1):
        place = pack_ids == pack
        at = np.arange(16) < place.sum(axis=1, keepdims=True)
        alone["input_ids"] = np.zeros_like(pack_ids)
        alone["input_ids"][at] = batch["input_ids"][place]
        alone["attention_mask"] = at
        got = np.asarray(apply({key: jnp.asarray(values) for key, values in alone.items()}))
        np.testing.assert_allclose(together[place], got[at], atol=2e-5)
    # Soft positions have an effect where they are accepted.
    moved = np.asarray(apply(rows | {"position_ids": rows["position_ids"][:, ::-1]}))
    has_effect = np.abs(moved - together).max() > 1e-2
    assert has_effect or not examples.reads_position_ids({"name": name})


def test_no_masking_policy_masks_special_tokens_or_crosses_texts(batch):
    ids, starts = jnp.asarray(batch["input_ids"]), jnp.asarray(batch["word_starts"])
    maskable = jnp.asarray(batch["attention_mask"]) & (ids != CLS) & (ids != SEP)
    keys = jax.random.split(jax.random.key(0), len(ids))
    budget = masking.prediction_budget(maskable, 0.5, 8)
    for choose in (masking.choose_words, masking.choose_ngrams, masking.choose_spans):
        positions, weights, *bounds = choose(keys, maskable, starts, budget, 8)
        rows, places = np.nonzero(np.asarray(weights))
        chosen = np.asarray(positions)[rows, places]
        assert np.asarray(maskable)[rows, chosen].all()
        assert len(set(zip(rows.tolist(), chosen.tolist(), strict=True))) == int(budget.sum())
        for ends in bounds:
            for end in np.moveaxis(np.asarray(ends)[rows, places], -1, 0):
                pack_ids = batch["pack_ids"]
                np.testing.assert_array_equal(pack_ids[rows, end], pack_ids[rows, chosen])


@pytest.mark.parametrize(
    "spec",
    [
        "spanbert:tiny",
        *(
            pytest.param(spec, marks=pytest.mark.slow)
            for spec in ("electra:tiny", "deberta:tiny", "deberta:tiny,mlm", "gpt_bert:tiny")
        ),
        pytest.param("xlnet:tiny", marks=pytest.mark.slow),
    ],
)
def test_the_loss_of_an_objective_is_the_sum_of_those_of_the_texts(batch, spec):
    """The effects of changes in two texts of one row add up."""
    fields = {"vocab_size": 40, "initializer_range": 0.5, "precision": "float32"}
    config = load_config(spec, {f"model.{field}": value for field, value in fields.items()})
    with config.unlocked():
        for objective in config.objectives.values():
            if "masked_lm_prob" in objective:
                objective.masked_lm_prob = 0.5  # so that both texts have predictions
    objectives = build.objectives(config.objectives, build.tokenizer_fields(config))
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    rows = {key: jnp.asarray(values) for key, values in batch.items() if key != "example_id"}
    rows["example_key"] = jax.random.split(jax.random.key(1), len(rows["input_ids"]))
    rows["example_weight"] = jnp.ones(len(rows["input_ids"]))
    variables = pretrainer.init(jax.random.key(0), rows, train=False)
    is_text = (batch["input_ids"] >= 5) & batch["attention_mask"]

    @jax.jit
    def losses(input_ids):
        found, _ = pretrainer.apply(variables, rows | {"input_ids": input_ids}, train=False)
        return {name: loss for name, (loss, _) in found.items()}

    def with_changes(*packs):
        changed = is_text & np.isin(batch["pack_ids"], packs)
        return losses(np.where(changed, 5 + (batch["input_ids"] + 11) % 35, batch["input_ids"]))

    neither, first, second, both = (with_changes(*packs) for packs in ((), (1,), (2,), (1, 2)))
    for name in objectives:
        changes = first[name] - neither[name], second[name] - neither[name]
        assert min(map(abs, changes)) > 1e-2
        np.testing.assert_allclose(both[name] - neither[name], sum(changes), atol=2e-3)


@pytest.mark.parametrize("name", ["elmo", "transformer"])
@pytest.mark.parametrize("format", ["packed-documents", "packed-apart"])
def test_models_that_do_not_separate_texts_are_refused(name, format):
    config = load_config({"elmo": "elmo:tiny", "transformer": "span_corruption:tiny"}[name])
    with config.unlocked():
        config.data.format, config.data.pair = format, "none"
    with pytest.raises(UserError, match=f"format={format} is not supported with model {name}"):
        examples.check(config)
