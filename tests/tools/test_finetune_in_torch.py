"""tools/finetune_in_torch.py: the tasks are learned, and scored on the given examples."""

import json
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: group `test-all`")
transformers = pytest.importorskip("transformers", reason="needs transformers: group `test-all`")

pytestmark = pytest.mark.slow

GOOD, BAD = ("sun", "sea", "joy"), ("rain", "mud", "woe")
NAMES = ("paris", "rome", "oslo")
WORDS = (*GOOD, *BAD, *NAMES, "the", "is", "in", "where", "we", "are", "##s", "?", ".")


@pytest.fixture(scope="module")
def tool(load_script):
    return load_script("tools/finetune_in_torch.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    )
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    transformers.set_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def glue(folder):
    (folder / "CoLA").mkdir()
    lines = [f"x\t1\t\tthe {word} is in" for word in GOOD]
    lines += [f"x\t0\t\tthe {word} is in" for word in BAD]
    for name, times in (("train", 8), ("dev", 1)):
        (folder / "CoLA" / f"{name}.tsv").write_text("\n".join(lines * times) + "\n")


def squad(folder):
    paragraphs = []
    for name in NAMES:
        for word in GOOD:
            context = f"the {word} is in {name} . we are in the mud ."
            answer = {"text": name, "answer_start": context.index(name)}
            question = {"id": f"{word}-{name}", "question": f"where is the {word} ?"}
            paragraphs.append({"context": context, "qas": [question | {"answers": [answer]}]})
    content = json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
    for name in ("train", "dev"):
        (folder / f"{name}-v1.1.json").write_text(content)


def conll(folder):
    sentences = [f"we O\nare O\nin O\n{name}s B-LOC\n. O\n" for name in NAMES]
    for name, times in (("train", 8), ("valid", 1)):
        (folder / f"{name}.txt").write_text("\n".join(sentences * times))


@pytest.mark.parametrize(
    ("task", "data", "metric", "epochs"),
    [("cola", glue, "matthews", 6), ("squad1", squad, "exact_match", 25), ("ner", conll, "f1", 8)],
)
def test_every_task_is_learned(
    tool, model, tmp_path, monkeypatch, capsys, task, data, metric, epochs
):
    data(tmp_path)
    words = ["tool", task, "--model", str(model), "--data", str(tmp_path), "--seeds", "1"]
    words += ["--epochs", str(epochs), "--learning_rate", "5e-3", "--batch_size", "8"]
    monkeypatch.setattr(sys, "argv", [*words, "--max_seq_length", "20"])
    monkeypatch.setattr(tool.Questions, "stride", 4)
    tool.main()
    result = json.loads(capsys.readouterr().out)
    assert result["median"][metric] == 1.0
