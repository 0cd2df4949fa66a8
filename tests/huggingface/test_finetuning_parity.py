"""Fine-tuning parity with PyTorch: loss of every step, final parameters, effect of dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import config as configs
from bertjax.huggingface import importing
from bertjax.layers.dropout import per_example_key
from bertjax.pretrainer import apply_encoder
from bertjax.runs import finetune_job
from bertjax.train.checkpoint import origin, trees

torch = pytest.importorskip("torch", reason="needs PyTorch: group `test-all`")
transformers = pytest.importorskip("transformers", reason="needs transformers: group `test-all`")

pytestmark = pytest.mark.slow

WORDS = ("a", "dog", "cat", "runs", "sleeps", "and", "the", "old", "sees", "bird", "in", "garden")
HEAD = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
NAMES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
RECIPE = {
    "optimizer.learning_rate": 3e-3,
    "optimizer.adam_eps": 1e-8,
    "optimizer.weight_decay": 0.3,
    "optimizer.warmup_share": 0.25,
    "optimizer.max_grad_norm": 2.0,
    "num_train_epochs": 3,
    "data.batch_size": 8,
    "data.max_seq_length": 32,
    "data.padded_lengths": (8, 16),
    "model.precision": "float32",
}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A BERT with random weights, large enough that dropout and clipping matter."""
    folder = tmp_path_factory.mktemp("released")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=32,
        initializer_range=0.2,
    )
    transformers.set_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """STS-B with 42 examples: five batches of 8 per epoch and one of 2."""
    folder = tmp_path_factory.mktemp("glue")
    random = np.random.default_rng(0)

    def sentence():
        return " ".join(random.choice(WORDS, random.integers(1, 9)))

    def row(number):
        return f"{number}\ta\tb\t1\t1\tc\td\t{sentence()}\t{sentence()}\t{random.uniform(0, 5):.2f}"

    (folder / "STS-B").mkdir()
    for split, size in (("train", 42), ("dev", 3)):
        rows = [HEAD, *map(row, range(size))]
        (folder / "STS-B" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def run(released, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    importing.write(importing.read(released), folder)
    return folder


def prepared(root, run, glue, folder, dropout=(0.0, 0.0, 0.0)):
    """A fine-tuning job of the run, and its initial state."""
    recipe = configs.load_config(f"{root / 'configs/glue.py'}:stsb", [])
    rates = {f"model.{name}": rate for name, rate in zip(NAMES[:2], dropout, strict=False)}
    recipe = configs.replace_fields(
        recipe, RECIPE | rates | {"task.classifier_dropout": dropout[2]}
    )
    job = finetune_job.prepare(recipe, init=str(run), data=glue, workdir=str(folder))
    state = job.trainer(0).create_state()
    encoder = origin.load_params(job.origin.checkpoint, state.params, "encoder")
    return job, state.replace(params=encoder)


def reference(released, params, dropout=(0.0, 0.0, 0.0)):
    """The same model in PyTorch, with the same head."""
    rates = dict(zip(NAMES, dropout, strict=True))
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(released, num_labels=1, **rates)
    head = params["glue"]["classifier"]["dense"]
    with torch.no_grad():
        model.classifier.weight.copy_(torch.tensor(np.asarray(head["kernel"]).T))
        model.classifier.bias.copy_(torch.tensor(np.asarray(head["bias"])))
    return model.train()


def inputs(batch):
    names = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    names["token_type_ids"] = "segment_ids"
    return {name: torch.tensor(np.asarray(batch[own])).long() for name, own in names.items()}


def adamw(model):
    """AdamW of transformers' Trainer: no weight decay of biases and LayerNorm scales."""
    groups = ([], [])
    for name, parameter in model.named_parameters():
        groups["bias" in name or "LayerNorm" in name].append(parameter)
    decay = RECIPE["optimizer.weight_decay"]
    return torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": decay}, {"params": groups[1], "weight_decay": 0}]
    )


def test_the_loss_of_every_step_equals_that_of_pytorch(root, run, released, glue, tmp_path):
    job, state = prepared(root, run, glue, tmp_path)
    model = reference(released, state.params)
    optimizer, train_step = adamw(model), job.trainer(0).train_step
    found, expected, norms = [], [], []
    for step, batch in job.dataset.batches["train"].training_batches():
        if step == job.config.num_train_steps:
            break
        state, metrics = train_step(state, jax.device_put(batch))
        found.append(float(metrics["loss"]))
        for group in optimizer.param_groups:
            group["lr"] = float(metrics["learning_rate"])
        real = torch.tensor(batch["example_weight"] > 0)
        error = model(**inputs(batch)).logits[:, 0] - torch.tensor(batch["labels"])
        loss = (error[real] ** 2).mean()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0).item())
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert len(found) == 18
    assert min(norms) < 2.0 < max(norms), "clipping must act in some steps and not in others"
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    arrays = trees.flatten_names(jax.tree.map(np.asarray, state.params["encoder"]))
    kernel = np.concatenate([each.query.weight.detach().T for each in self_attentions(model)])
    own = next(a for name, a in arrays.items() if name.endswith("query/kernel"))
    np.testing.assert_allclose(own.reshape(kernel.shape), kernel, atol=2e-4)
    norms = [layer.output.LayerNorm.weight.detach() for layer in model.bert.encoder.layer]
    own = next(a for name, a in arrays.items() if name.endswith("feed_forward_norm/scale"))
    np.testing.assert_allclose(own, np.stack(norms), atol=2e-4)


def self_attentions(model):
    return [layer.attention.self for layer in model.bert.encoder.layer]


@pytest.mark.parametrize("dropout", [(0.3, 0, 0), (0, 0.3, 0), (0, 0, 0.3)], ids=NAMES)
def test_dropout_spreads_the_score_as_in_pytorch(root, run, released, glue, tmp_path, dropout):
    """One example many times in a batch: the rows differ only by their dropout masks."""
    rows = 2048
    job, state = prepared(root, run, glue, tmp_path, dropout)
    _, batch = next(job.dataset.batches["train"].training_batches())
    batch = {name: np.repeat(array[:1], rows, axis=0) for name, array in batch.items()}
    model = reference(released, state.params, dropout)
    transformers.set_seed(1)
    with torch.no_grad():
        expected = model(**inputs(batch)).logits[:, 0].numpy()

    def scores(module, batch):
        encoded = apply_encoder(module.encoder, batch, train=True)
        return module.glue.scores(module.encoder, encoded, batch, train=True)[0][:, 0]

    @jax.jit
    def sampled(params, batch):
        keys = jax.random.split(jax.random.key(2), rows)
        rngs = {"dropout": per_example_key(jax.random.key(3), keys)}
        return job.pretrainer.apply({"params": params}, batch, method=scores, rngs=rngs)

    found = np.asarray(sampled(state.params, jax.tree.map(jnp.asarray, batch)))
    # Of 2,048 rows a standard deviation has a relative error of 1.6%, on either side.
    np.testing.assert_allclose(found.std(), expected.std(), rtol=0.08)
    assert abs(found.mean() - expected.mean()) < 5 * expected.std() * np.sqrt(2 / rows)
