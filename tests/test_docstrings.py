"""The examples in the docstrings of the public interface run as they are printed there."""

import doctest
import importlib
import shutil

import pytest

import bertjax

pytestmark = pytest.mark.slow

GPT = {
    "num_train_steps": 1,
    "log_every": 1,
    "eval_every": 1,
    "eval_examples": 8,
    "model.hidden_size": 8,
    "model.num_attention_heads": 2,
    "model.num_hidden_layers": 1,
    "model.intermediate_size": 12,
    "model.max_position_embeddings": 32,
    "tokenizer.path": "vocab",
    "model.vocab_size": 200,
    "data.input": ("text/*.txt",),
    "data.validation_fraction": 0.3,
    "data.max_seq_length": 32,
    "data.batch_size": 8,
    "data.microbatches": 1,
}


@pytest.fixture(scope="module")
def folder(root, tmp_path_factory, load_script):
    """The runs, texts and task data that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    saved = root / "tests" / "data_fixtures" / "saved_runs"
    shutil.copytree(saved / "run", folder / "runs" / "bert")
    shutil.copytree(saved / "finetuned", folder / "runs" / "rte")
    shutil.copytree(saved / "vocab", folder / "vocab")
    (folder / "text").mkdir()
    shutil.copy(saved / "text.txt", folder / "text")
    (folder / "data").mkdir()
    load_script("tests/tasks/small_tasks.py").write(folder / "data")
    rows = (folder / "data" / "RTE" / "dev.tsv").read_text().splitlines()
    predictions = [f"{row.split()[0]}\tentailment" for row in rows[1:]]
    (folder / "RTE.tsv").write_text("\n".join(["index\tprediction", *predictions, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("BERTJAX_CACHE", str(folder / "cache"))
        bertjax.pretrain(bertjax.load_config("gpt2:tiny", GPT), "runs/gpt2")
        shorter = {"num_train_epochs": 1, "keep_checkpoints": True, "data.max_seq_length": 32}
        for task, spec, own in [
            ("ner", "ner:conll2003", {}),
            ("squad2", "squad:squad2", {"data.max_query_length": 8, "data.doc_stride": 8}),
        ]:
            config = bertjax.load_config(f"{spec},tiny", shorter | own)
            bertjax.finetune(config, init="runs/bert", data=f"data/{task}", workdir=f"runs/{task}")
        yield folder


@pytest.mark.parametrize(
    "module",
    [
        "inference.loader",
        "inference.model",
        "inference.evaluation",
        "corpus.prepare",
        "runs.pretrain",
        "runs.finetune",
    ],
)
def test_the_examples_run(folder, module):
    names = {"bertjax": bertjax}
    result = doctest.testmod(importlib.import_module(f"bertjax.{module}"), extraglobs=names)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_function_and_method_has_an_example():
    functions = [getattr(bertjax, name) for name in bertjax.__all__ if name[0].islower()]
    methods = [
        value for name, value in vars(bertjax.Model).items() if name == "__call__" or name[0] != "_"
    ]
    without = [
        found.__qualname__
        for found in (*functions, *methods)
        if callable(found) and found.__doc__ and ">>> " not in found.__doc__
    ]
    assert not without
