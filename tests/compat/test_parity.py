"""Models of transformers give the same numbers here, to 1e-4, and come back as they went.

Each class of each architecture, with weights that are draws, and again ten times as large; with
padding, with one token, and with as many as fit.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import exporting, importing
from bertjax.compat.huggingface import Released
from bertjax.data import tokenizer
from bertjax.interfaces import Pretrainer
from bertjax.train.named_arrays import nested

torch = pytest.importorskip("torch", reason="parity needs torch: pip install 'bertjax[hf]'")
transformers = pytest.importorskip("transformers", reason="parity needs transformers: bertjax[hf]")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
V, D, N, H, F, LONGEST = len(WORDS), 24, 3, 4, 40, 17
COMMON = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
}
DISTIL = {"vocab_size": V, "dim": D, "n_layers": N, "n_heads": H, "hidden_dim": F}
SIZES = {
    "Bert": COMMON | {"max_position_embeddings": LONGEST, "hidden_act": "relu"},
    # Padding is token 0 here, so positions begin at 1.
    "Roberta": COMMON
    | {
        "max_position_embeddings": LONGEST + 1,
        "type_vocab_size": 1,
        "pad_token_id": 0,
        "layer_norm_eps": 1e-5,
    },
    "DistilBert": DISTIL | {"max_position_embeddings": LONGEST},
}
CLASSES = [
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "RobertaModel",
    "RobertaForMaskedLM",
    "RobertaForSequenceClassification",
    "DistilBertModel",
    "DistilBertForMaskedLM",
    "DistilBertForSequenceClassification",
]
MNLI = {0: "entailment", 1: "neutral", 2: "contradiction"}


def reference(class_name: str, scale: float):
    """A model of theirs, every weight a draw."""
    family = class_name.partition("For")[0].removesuffix("Model")
    labels = {"id2label": MNLI, "label2id": {v: k for k, v in MNLI.items()}}
    fields = SIZES[family] | (labels if class_name.endswith("SequenceClassification") else {})
    config = getattr(transformers, f"{family}Config")(**fields, finetuning_task="mnli")
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            center = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            weight.copy_(center + scale * torch.randn(weight.shape))
    return model


@pytest.fixture(scope="module", params=CLASSES)
def class_name(request):
    return request.param


@pytest.fixture(scope="module", params=[0.05, 0.5], ids=["usual", "magnified"])
def theirs(class_name, request):
    return reference(class_name, request.param)


def batches():
    """Rows of 11 tokens of which 11, 5 and 8 are there; one token; as many as fit."""
    random = np.random.default_rng(0)
    for lengths, longest in (([11, 5, 8], 11), ([1, 1], 1), ([LONGEST], LONGEST)):
        mask = np.arange(longest) < np.array(lengths)[:, None]
        input_ids = np.where(mask, random.integers(5, V, mask.shape), 0)
        segments = (np.arange(longest) >= longest // 2) & mask
        yield {"input_ids": input_ids, "attention_mask": mask, "segment_ids": segments}


def outputs_of_theirs(model, batch):
    """Everything that comes out, by our names."""
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = batch["segment_ids"]
    with torch.no_grad():
        base = getattr(model, model.base_model_prefix, model)
        tensors = {name: torch.tensor(array).long() for name, array in inputs.items()}
        encoded, out = base(**tensors), model(**tensors)
    found = {"sequence": encoded.last_hidden_state}
    if getattr(encoded, "pooler_output", None) is not None:
        found["pooled"] = encoded.pooler_output
    name = type(model).__name__
    if name.endswith("PreTraining"):
        found |= {"mlm": out.prediction_logits, "sentence_pair": out.seq_relationship_logits}
    elif name.endswith("MaskedLM"):
        found["mlm"] = out.logits
    elif name.endswith("NextSentencePrediction"):
        found["sentence_pair"] = out.logits
    elif name.endswith("SequenceClassification"):
        found["glue"] = out.logits
    return {name: value.numpy() for name, value in found.items()}


def outputs_of_ours(config, params, batch):
    """Everything that comes out of an imported model, in float32."""
    with config.unlocked():
        config.model.precision = "float32"
    pretrainer = importing.pretrainer(config)
    rows = {
        "input_ids": jnp.asarray(batch["input_ids"]),
        "attention_mask": jnp.asarray(batch["attention_mask"]),
        "segment_ids": jnp.asarray(batch["segment_ids"], jnp.int32),
    }
    variables = {"params": jax.tree.map(jnp.asarray, nested(params))}
    return pretrainer.apply(variables, rows, method=_outputs)


def _outputs(module: Pretrainer, rows):
    encoded = module.encoder(rows, train=False)
    found = {"sequence": encoded.sequence, "pooled": encoded.pooled}
    positions = jnp.broadcast_to(jnp.arange(rows["input_ids"].shape[1]), rows["input_ids"].shape)
    if "mlm" in module.objectives:
        found["mlm"] = module.mlm.logits(module.encoder, encoded.sequence, positions)
    if "sentence_pair" in module.objectives:
        found["sentence_pair"] = module.sentence_pair.logits(module.encoder, encoded)
    if "glue" in module.objectives:
        found["glue"], _ = module.glue.scores(module.encoder, encoded, rows, train=False)
    return found


def assert_same_outputs(found, wanted, mask):
    assert wanted.keys() <= found.keys()
    for name, value in wanted.items():
        where = mask if name in ("sequence", "mlm") else slice(None)
        np.testing.assert_allclose(
            np.asarray(found[name])[where], value[where], atol=1e-4, err_msg=name
        )


def test_what_comes_out_is_the_same(theirs):
    weights = {name: value.numpy() for name, value in theirs.state_dict().items()}
    released = Released.of(theirs.config.to_dict(), weights)
    config = importing.run_config(released, "reference")
    params = importing.parameters(released, config)
    for batch in batches():
        wanted = outputs_of_theirs(theirs, batch)
        found = outputs_of_ours(config, params, batch)
        assert_same_outputs(found, wanted, batch["attention_mask"])
        assert np.abs(wanted["sequence"]).max() > 1


@pytest.fixture(scope="module")
def saved(class_name, tmp_path_factory):
    """What transformers saved, imported and exported again."""
    folder = tmp_path_factory.mktemp("exchange")
    reference(class_name, 0.05).save_pretrained(folder / "theirs")
    (folder / "theirs" / "vocab.txt").write_text("\n".join([*WORDS, ""]))
    importing.write(importing.read(folder / "theirs"), folder / "run")
    exporting.write(exporting.find(str(folder / "run")), folder / "back")
    return folder


def test_import_then_export_gives_the_same_file(saved):
    before, after = (saved / name / "model.safetensors" for name in ("theirs", "back"))
    assert after.read_bytes() == before.read_bytes()


def test_export_then_import_gives_the_same_run(saved, tmp_path):
    importing.write(importing.read(saved / "back"), tmp_path / "again")
    first, second = (exporting.find(str(f)).origin for f in (saved / "run", tmp_path / "again"))
    assert first.config["imported"]["parameters"] == second.config["imported"]["parameters"]
    assert first.config["model"] == second.config["model"]


def test_transformers_opens_what_was_exported(saved, class_name):
    model = getattr(transformers, class_name).from_pretrained(saved / "back")
    made = importing.read(saved / "run" / ".." / "theirs")
    for batch in batches():
        wanted = outputs_of_ours(made.config, made.params, batch)
        found = outputs_of_theirs(model.eval(), batch)
        assert_same_outputs(wanted, found, batch["attention_mask"])
    pieces, opened = (
        tokenizer.load(saved / "run" / "tokenizer"),
        transformers.AutoTokenizer.from_pretrained(saved / "back"),
    )
    (ids,) = pieces.encode_batch(["a b q z"])
    assert opened("a b q z")["input_ids"] == [pieces.cls_id, *ids, pieces.sep_id]
    assert opened.model_max_length == LONGEST
