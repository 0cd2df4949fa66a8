"""Round trips of the recipes of all models through Hugging Face folders."""

import json
import pydoc_data.topics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import config as configs
from bertjax.errors import UserError
from bertjax.huggingface import exporting, importing
from bertjax.huggingface.model import read_arrays
from bertjax.tasks import sequences
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import restore, trees
from bertjax.train.checkpoint.manager import Checkpoints

NO_POOLER = {"encoder/pooler"}
# For each recipe the class of transformers, and the parts that are left out.
RUNS = {
    "albert": ("AlbertForPreTraining", set()),
    "electra": ("ElectraForPreTraining", {"generator"}),
    "xlnet": ("XLNetLMHeadModel", set()),
    "bert_wwm": ("BertForPreTraining", set()),
    "roberta": ("RobertaForMaskedLM", NO_POOLER),
    "spanbert": ("BertForMaskedLM", {"sbo"} | NO_POOLER),
    "tinybert": ("BertModel", {"layer_matching"} | NO_POOLER),
    "distilbert": ("DistilBertForMaskedLM", set()),
    "modernbert": ("ModernBertForMaskedLM", {"config.model.attention_output_dropout_prob"}),
}
SHRUNK = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "embedding_size": 6,
    "precision": "float32",
}
TEACHER_OBJECTIVES = ("layer_matching", "soft_targets", "hidden_cosine")
TEXT = [text[:4000] for _, text in sorted(pydoc_data.topics.topics.items())[:6]]


@pytest.fixture(scope="module")
def vocabulary():
    """A small tokenizer of a kind, trained once."""
    cache = {}

    def of(kind):
        if kind not in cache:
            cache[kind] = tokenizers.train(TEXT, kind=kind, vocab_size=320)
        return cache[kind]

    return of


def write_run(folder, config, tokenizer, more=None) -> dict[str, np.ndarray]:
    """Write a run of a config with random weights; returns the weights."""
    shapes = importing.parameter_shapes(importing.pretrainer(config, tokenizer)) | (more or {})
    random = np.random.default_rng(0)
    params = {
        name: (random.normal(size=shape) / 3 + name.endswith("scale")).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(configs.to_json(config))
    tokenizer.save(str(folder / "tokenizer"))
    with Checkpoints(folder) as checkpoints:
        checkpoints.save({"params": jax.tree.map(jnp.asarray, trees.nest(params))}, step=7)
    return params


def shrunk(recipe, vocabulary):
    """The `tiny` config of a recipe, further shrunk, and a tokenizer of its kind."""
    config = configs.load_config(f"configs/{recipe}.py:tiny", [])
    tokenizer = vocabulary(config.tokenizer.kind)
    with config.unlocked():
        fields = {name: value for name, value in SHRUNK.items() if name in config.model}
        config.model.update(fields, vocab_size=tokenizer.vocab_size)
    return config, tokenizer


def pretrained(folder, recipe, vocabulary, **model):
    config, tokenizer = shrunk(recipe, vocabulary)
    with config.unlocked():
        config.model.update(model)
        matched = "layer_matching" in config.objectives
        for name in set(TEACHER_OBJECTIVES) & set(config.objectives):
            del config.objectives[name]  # its teacher would have to be there; it is not exported
    more = {"layer_matching/hidden_projection/kernel": (16, 20)} if matched else {}
    return write_run(folder, config, tokenizer, more)


MNLI = {"name": "glue", "dataset": "mnli", "classifier_dropout": 0.1, "pooler_act": "tanh"}
RACE = MNLI | {"name": "multiple_choice", "dataset": "race", "num_choices": 4}
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
NER = {"name": "ner", "labels": TAGS, "classifier_dropout": 0.2}


def finetuned(folder, recipe, vocabulary, section=MNLI, unanswerable=False, data=None, **task):
    config, tokenizer = shrunk(recipe, vocabulary)
    with config.unlocked():
        del config.objectives
        config.task = section | task
        config.data.update(data or {}, unanswerable=unanswerable)
    return write_run(folder, config, tokenizer)


def export(run, target, **options):
    return exporting.write(exporting.find(str(run)), target, **options)


def assert_round_trip(first, folder):
    """Check that import then export gives the same weights and configs, byte for byte."""
    importing.write(importing.read(first), folder / "run_again")
    export(folder / "run_again", folder / "back")
    for name in ("model.safetensors", "config.json", "tokenizer_config.json"):
        assert (folder / "back" / name).read_bytes() == (first / name).read_bytes(), name
    before, after = (
        json.loads((f / "tokenizer.json").read_text()) for f in (first, folder / "back")
    )
    assert before == after


@pytest.mark.parametrize("recipe", RUNS)
def test_round_trip_of_a_run(recipe, vocabulary, tmp_path):
    class_name, left_out = RUNS[recipe]
    params = pretrained(tmp_path / "run", recipe, vocabulary)
    exported = export(tmp_path / "run", tmp_path / "hf_model")
    assert (exported.class_name, set(exported.left_out)) == (class_name, left_out)
    arrays = read_arrays(tmp_path / "hf_model")
    kept = {n: a for n, a in params.items() if not n.startswith(tuple(left_out) or "-")}
    assert sum(a.size for a in arrays.values()) == sum(a.size for a in kept.values())
    assert_round_trip(tmp_path / "hf_model", tmp_path)


def test_a_modernbert_has_the_special_ids_of_its_tokenizer(vocabulary, tmp_path):
    pretrained(tmp_path / "run", "modernbert", vocabulary)
    export(tmp_path / "run", tmp_path / "hf_model")
    config = json.loads((tmp_path / "hf_model" / "config.json").read_text())
    tokenizer = tokenizers.load(tmp_path / "run" / "tokenizer")
    for role in ("pad", "cls", "sep"):  # transformers has defaults for the published vocabulary
        assert config[f"{role}_token_id"] == getattr(tokenizer, f"{role}_id")


def test_either_tower_of_electra(vocabulary, tmp_path):
    params = pretrained(tmp_path / "run", "electra", vocabulary)
    exported = export(tmp_path / "run", tmp_path / "hf_model", generator=True)
    assert (exported.class_name, exported.left_out) == ("ElectraForMaskedLM", {})
    config = json.loads((tmp_path / "hf_model" / "config.json").read_text())
    assert (config["hidden_size"], config["embedding_size"]) == (8, 6)
    arrays = read_arrays(tmp_path / "hf_model")
    words = params["encoder/word_embeddings/embedding"]
    np.testing.assert_array_equal(arrays["electra.embeddings.word_embeddings.weight"], words)
    kernel = params["generator/encoder/layers/block/feed_forward/output/kernel"]
    name = "electra.encoder.layer.1.output.dense.weight"
    np.testing.assert_array_equal(arrays[name], kernel[1].T)
    assert "| tower | generator |" in (tmp_path / "hf_model" / "README.md").read_text()
    assert_round_trip(tmp_path / "hf_model", tmp_path)
    with pytest.raises(UserError, match=r"--scores: got .* with --generator, expected none"):
        export(tmp_path / "run", tmp_path / "other", generator=True, scores=["runs/mrpc"])


def test_a_run_without_a_generator(vocabulary, tmp_path):
    pretrained(tmp_path / "run", "bert_masks30", vocabulary)
    with pytest.raises(UserError, match="run has no generator: leave --generator out"):
        export(tmp_path / "run", tmp_path / "hf_model", generator=True)


def test_layers_without_sharing_are_groups(vocabulary, tmp_path):
    pretrained(tmp_path / "run", "albert", vocabulary, sharing="none")
    export(tmp_path / "run", tmp_path / "hf_model")
    config = json.loads((tmp_path / "hf_model" / "config.json").read_text())
    assert config["num_hidden_groups"] == config["num_hidden_layers"] == 2
    assert_round_trip(tmp_path / "hf_model", tmp_path)


@pytest.mark.parametrize(
    ("model", "printed"),
    [
        ({"sharing": "attention"}, "sharing: got 'attention', expected one of all, none"),
        ({"embedding_size": 16}, "embedding_size: got 16, the same as hidden_size"),
    ],
)
def test_an_albert_without_a_counterpart_is_refused(model, printed, vocabulary, tmp_path):
    pretrained(tmp_path / "run", "albert", vocabulary, **model)
    with pytest.raises(UserError, match=printed):
        export(tmp_path / "run", tmp_path / "hf_model")
    assert not (tmp_path / "hf_model").exists()


def test_sentence_pairs_alone_have_no_class(vocabulary, tmp_path):
    config, tokenizer = shrunk("albert", vocabulary)
    with config.unlocked():
        del config.objectives.mlm
    write_run(tmp_path / "run", config, tokenizer)
    exported = export(tmp_path / "run", tmp_path / "hf_model")
    assert exported.class_name == "AlbertModel"
    assert exported.left_out == {"sentence_pair": "no class of transformers has it"}
    assert "pooler.weight" in read_arrays(tmp_path / "hf_model")


def test_an_untrained_classifier_is_not_exported(vocabulary, tmp_path):
    """For instance between the two stages of TinyBERT."""
    config, tokenizer = shrunk("tinybert", vocabulary)
    with config.unlocked():
        config.objectives = {}
        config.task = {"name": "glue", "dataset": "mnli", "weight": 0.0, "pooler_act": "tanh"}
    write_run(tmp_path / "run", config, tokenizer)
    exported = export(tmp_path / "run", tmp_path / "hf_model")
    assert (exported.class_name, set(exported.left_out)) == (
        "BertModel",
        {"glue", "encoder/pooler"},
    )
    assert set(exported.left_out.values()) == {"this run has not trained it"}


CLASSIFIERS = [("albert", "tanh"), ("electra", "gelu"), ("xlnet", "tanh"), ("deberta", "gelu")]


@pytest.mark.parametrize(("recipe", "pooler_act"), CLASSIFIERS)
def test_round_trip_of_a_classifier(recipe, pooler_act, vocabulary, tmp_path):
    finetuned(tmp_path / "run", recipe, vocabulary, pooler_act=pooler_act)
    exported = export(tmp_path / "run", tmp_path / "hf_model")
    assert exported.class_name.endswith("ForSequenceClassification")
    assert exported.class_name.lower().startswith(recipe)
    assert exported.left_out == {}
    assert_round_trip(tmp_path / "hf_model", tmp_path)


@pytest.mark.parametrize(
    ("section", "end", "hf_fields"),
    [
        (NER, "TokenClassification", {"classifier_dropout": 0.2}),
        (RACE, "MultipleChoice", {"finetuning_task": "race", "num_choices": 4}),
        ({"name": "squad"}, "QuestionAnswering", {"finetuning_task": "squad2"}),
    ],
)
def test_round_trip_of_every_task_head(section, end, hf_fields, vocabulary, tmp_path):
    finetuned(tmp_path / "run", "bert_masks30", vocabulary, section, unanswerable=True)
    exported = export(tmp_path / "run", tmp_path / "hf_model")
    assert exported.class_name == f"BertFor{end}"
    config = json.loads((tmp_path / "hf_model" / "config.json").read_text())
    assert hf_fields.items() <= config.items()
    if end == "TokenClassification":
        assert config["id2label"] == {str(number): tag for number, tag in enumerate(TAGS)}
    pooler = {} if end == "MultipleChoice" else {"encoder/pooler": "this run has not trained it"}
    assert exported.left_out == pooler
    assert any("pooler" in name for name in read_arrays(tmp_path / "hf_model")) != bool(pooler)
    assert_round_trip(tmp_path / "hf_model", tmp_path)
    task = json.loads((tmp_path / "run_again" / "config.json").read_text())["task"]
    assert task == json.loads((tmp_path / "run" / "config.json").read_text())["task"]


@pytest.mark.parametrize("data", [{"knowledge": "graph.spo"}, {"document_context": True}])
def test_inputs_without_a_counterpart_are_named(data, vocabulary, tmp_path):
    finetuned(tmp_path / "run", "bert_masks30", vocabulary, data=data)
    exported = export(tmp_path / "run", tmp_path / "hf_model")
    (field,) = data
    assert exported.left_out == {f"config.data.{field}": "transformers reads texts without it"}


@pytest.mark.parametrize(
    ("recipe", "inputs"),
    [
        ("bert_masks30", ["input_ids", "token_type_ids", "attention_mask"]),
        ("xlnet", ["input_ids", "token_type_ids", "attention_mask"]),
        ("roberta", ["input_ids", "attention_mask"]),
        # A GPT-2 of transformers adds the embeddings of the tokens 0 and 1 for `token_type_ids`.
        ("gpt2", ["input_ids", "attention_mask"]),
    ],
)
def test_segments_are_inputs_of_models_that_distinguish_them(recipe, inputs, vocabulary, tmp_path):
    pretrained(tmp_path / "run", recipe, vocabulary)
    export(tmp_path / "run", tmp_path / "hf_model")
    written = json.loads((tmp_path / "hf_model" / "tokenizer_config.json").read_text())
    assert written["model_input_names"] == inputs


def test_a_task_without_a_class_in_transformers_is_refused(vocabulary, tmp_path):
    finetuned(tmp_path / "run", "gpt2", vocabulary, NER)
    with pytest.raises(UserError, match=r"head of task ner, which no class .* 'gpt2' has .*none"):
        export(tmp_path / "run", tmp_path / "hf_model")
    assert not (tmp_path / "hf_model").exists()


def test_electra_requires_its_own_activation(vocabulary, tmp_path):
    finetuned(tmp_path / "run", "electra", vocabulary, pooler_act="tanh")
    with pytest.raises(
        UserError, match=r"got 'tanh', expected 'gelu',.*--config.task.pooler_act=gelu"
    ):
        export(tmp_path / "run", tmp_path / "hf_model")


FIRST = ["the value of an expression", "a name", "import the module and call it"]
SECOND = ["is it an object", "the statement that binds it is a list of names", "no"]


@pytest.mark.parametrize("texts", [[FIRST], [FIRST, SECOND]], ids=["one text", "two texts"])
@pytest.mark.parametrize(("recipe", "pooler_act"), CLASSIFIERS)
@pytest.mark.slow
def test_class_scores_of_texts_are_equal(recipe, pooler_act, texts, vocabulary, tmp_path):
    """From text to scores, with the tokenizer and model of transformers and of bertjax."""
    torch = pytest.importorskip("torch", reason="needs torch, of the dependency group test-all")
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers, of the group test-all"
    )
    params = finetuned(tmp_path / "run", recipe, vocabulary, pooler_act=pooler_act)
    export(tmp_path / "run", tmp_path / "hf_model")
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf_model")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf_model")
    inputs = opened(*texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model.eval()(**inputs).logits.numpy()

    config, tokenizer = (
        configs.from_json((tmp_path / "run" / "config.json").read_text()),
        tokenizers.load(tmp_path / "run" / "tokenizer"),
    )
    encoded = sequences.encode(texts, tokenizer, 40, cls_last=recipe == "xlnet")
    rows = encoded.rows(np.arange(3), int(encoded.lengths.max()))
    attention_mask = inputs["attention_mask"].numpy().astype(bool)
    names = {"input_ids": "input_ids", "segment_ids": "token_type_ids"}
    names = {
        bertjax_name: hf_name
        for bertjax_name, hf_name in names.items()
        if hf_name in opened.model_input_names
    }
    for bertjax_name, hf_name in names.items():
        np.testing.assert_array_equal(
            rows[bertjax_name][rows["attention_mask"]], inputs[hf_name].numpy()[attention_mask]
        )
    # Padding lies where the last token of every row, or the first, is [CLS].
    at = -1 if recipe == "xlnet" else 0
    assert (inputs["input_ids"].numpy()[:, at] == tokenizer.cls_id).all()

    def scores(module, batch):
        encoded = module.encoder(batch, train=False)
        return module.glue.scores(module.encoder, encoded, batch, train=False)[0]

    variables = {"params": jax.tree.map(jnp.asarray, trees.nest(params))}
    batch = jax.tree.map(jnp.asarray, rows)
    found = importing.pretrainer(config).apply(variables, batch, method=scores)
    assert np.ptp(expected, axis=0).max() > 0.05
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
def test_outputs_of_the_generator_are_equal(vocabulary, tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, of the dependency group test-all")
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers, of the group test-all"
    )
    params = pretrained(tmp_path / "run", "electra", vocabulary)
    export(tmp_path / "run", tmp_path / "hf_model", generator=True)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf_model").eval()
    input_ids = np.random.default_rng(1).integers(5, 300, (2, 9))
    attention_mask = np.arange(9) < np.array([[9], [1]])
    with torch.no_grad():
        mask = torch.tensor(attention_mask).long()
        expected = model(torch.tensor(input_ids), attention_mask=mask).logits.numpy()

    def generated(module, batch):
        prepared = module.generator.prepare(module.encoder, batch, train=False)
        return prepared["generator_logits"]

    batch = {
        "input_ids": jnp.asarray(input_ids),
        "attention_mask": jnp.asarray(attention_mask),
        "mlm_positions": jnp.tile(jnp.arange(9), (2, 1)),
        "mlm_labels": jnp.asarray(input_ids),
        "mlm_weights": jnp.asarray(attention_mask, jnp.float32),
        "example_key": jax.random.split(jax.random.key(0), 2),
    }
    config = configs.from_json((tmp_path / "run" / "config.json").read_text())
    variables = {"params": jax.tree.map(jnp.asarray, trees.nest(params))}
    tokenizer = tokenizers.load(tmp_path / "run" / "tokenizer")
    found = importing.pretrainer(config, tokenizer).apply(variables, batch, method=generated)
    np.testing.assert_allclose(
        np.asarray(found)[attention_mask], expected[attention_mask], atol=1e-4
    )


def test_the_imported_discriminator_has_the_weights_of_the_run(vocabulary, tmp_path):
    """Bit for bit."""
    params = pretrained(tmp_path / "run", "electra", vocabulary)
    export(tmp_path / "run", tmp_path / "hf_model")
    importing.write(importing.read(tmp_path / "hf_model"), tmp_path / "again")
    checkpoint = exporting.find(str(tmp_path / "again")).origin.checkpoint
    again = trees.flatten_names(restore.load_numpy(checkpoint, "params"))
    assert again.keys() == {n for n in params if not n.startswith("generator/")}
    for name, array in again.items():
        np.testing.assert_array_equal(array, params[name], err_msg=name)
