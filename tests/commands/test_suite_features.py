"""bertjax suite features: once with real runs, else with a stub of finetune that writes results."""

import itertools
import json
import pathlib
import sys

import pytest

from bertjax import cli
from bertjax import config as configs
from bertjax.sweeps import features, scheduler
from bertjax.tokenizers import tokenizer as tokenizers

NAMES = {"Anna": "B-PER", "Berg": "B-PER", "Oslo": "B-LOC", "Bergen": "B-LOC"}
VERBS = ("saw", "left", "likes", "found")
SENTENCES = [[a, verb, b] for a, verb, b in itertools.product(NAMES, VERBS, NAMES) if a != b]
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "initializer_range": 0.2,
}
QUICK = {
    "num_train_epochs": 15,
    "keep_checkpoints": "true",
    "max_train_examples": 0,
    "data.max_seq_length": 16,
    "data.padded_lengths": "()",
    "optimizer.learning_rate": 0.02,
    "task.lstm_size": 8,
    "task.lstm_layers": 1,
}

STAND_IN = """
import json, pathlib, sys
options = dict(word.lstrip("-").split("=") for word in sys.argv[3:] if "=" in word)
options |= dict(zip(sys.argv[3::2], sys.argv[4::2]))
workdir, row = pathlib.Path(options["--workdir"]), options["config.task.layers"]
with open(workdir.parent / "order", "a") as file:
    file.write(row + "\\n")
score = json.loads(pathlib.Path(sys.argv[1]).read_text()).get(row, 0.5)
if score == "broken":
    sys.exit("no such luck")
spread = {"median": score, "min": score - 0.1, "max": score + 0.1}
results = {"status": "complete", "seeds": int(options["--seeds"])}
results["over_seeds"] = {"dev/score": spread, "dev/f1": spread}
# Atomic as in `bertjax finetune`: the suite reads the results of other runs meanwhile.
(workdir / "partial").write_text(json.dumps(results))
(workdir / "partial").rename(workdir / "results.json")
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conll")
    for name, some in (("train", SENTENCES), ("valid", SENTENCES[::5])):
        texts = ["\n".join(f"{word} x {NAMES.get(word, 'O')}" for word in text) for text in some]
        (folder / f"{name}.txt").write_text("\n\n".join([*texts, ""]))
    return folder


@pytest.fixture(scope="module")
def run_of_two_layers(tmp_path_factory) -> pathlib.Path:
    """Model and tokenizer of a run: enough for random parameters."""
    run = tmp_path_factory.mktemp("runs") / "bert"
    text = [" ".join(words) for words in SENTENCES]
    tokenizer = tokenizers.train(text, kind="wordpiece", vocab_size=60, lowercase=False)
    tokenizer.save(str(run / "tokenizer"))
    fields = [(f"model.{name}", str(value)) for name, value in SMALL.items()]
    fields += [("model.vocab_size", str(tokenizer.vocab_size)), ("data.phases", "()")]
    config = configs.load_config("configs/bert.py:tiny", fields)
    (run / "config.json").write_text(configs.to_json(config))
    return run


@pytest.mark.slow
def test_features_become_a_table(run_bertjax, data, run_of_two_layers, tmp_path, capsys):
    words = ["--init", f"random:{run_of_two_layers}", "--data", data, "--workdir", tmp_path / "w"]
    words += ["--recipe", "tiny", "--layers", "weighted_sum_all", "--seeds", 1]
    words += [f"--config.{name}={value}" for name, value in QUICK.items()]
    output = run_bertjax("suite", "features", *words)
    assert output.returncode == 0, output.stderr
    found = json.loads((tmp_path / "w" / "results.json").read_text())
    assert list(found) == ["weighted_sum_all"]
    assert found["weighted_sum_all"]["medians"]["dev/f1"] > 0.9
    assert "[1/1] weighted_sum_all" in output.stderr
    assert output.stdout.splitlines()[2].startswith("weighted sum of all layers  ")
    log = (tmp_path / "w" / "weighted_sum_all" / "finetune.log").read_text()
    assert "parameters from untrained weights, the architecture of" in log
    assert log.partition("parameters from")[2].splitlines()[0].endswith(", frozen")
    assert "ner_features/mix/weights" in log
    inputs = tmp_path / "inputs.txt"
    inputs.write_text("Berg found Bergen\n")
    seed = tmp_path / "w" / "weighted_sum_all" / "seed_0"
    assert cli.main(["predict", "--model", str(seed), "--input", str(inputs)]) == 0
    assert json.loads(capsys.readouterr().out)["tags"] == ["B-PER", "O", "B-LOC"]


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Replace `bertjax finetune` by a stub, and return a function that sets the scores by row."""
    script, scores = tmp_path / "stand_in.py", tmp_path / "scores.json"
    script.write_text(STAND_IN)
    scores.write_text("{}")

    command = (sys.executable, str(script), str(scores))
    monkeypatch.setattr(scheduler, "COMMAND", command)
    return lambda **rows: scores.write_text(json.dumps(rows))


@pytest.fixture
def deep(run_of_two_layers, tmp_path) -> pathlib.Path:
    """The same with enough layers for every row."""
    content = json.loads((run_of_two_layers / "config.json").read_text())
    content["model"]["num_hidden_layers"] = 4
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "config.json").write_text(json.dumps(content))
    return tmp_path / "deep"


@pytest.fixture
def suite(stand_in, data, deep, tmp_path, root, monkeypatch, capsys):
    monkeypatch.chdir(root)

    def run(*words, init=deep):
        fixed = ("--init", f"random:{init}", "--data", data, "--workdir", tmp_path / "suite")
        status = cli.main(["suite", "features", *map(str, (*fixed, *words))])
        return status, *capsys.readouterr()

    return run


def ran(tmp_path) -> list[str]:
    path = tmp_path / "suite" / "order"
    return path.read_text().split() if path.exists() else []


def test_every_row_is_next_to_the_published_one(suite, stand_in, tmp_path):
    stand_in(last=0.25, concat_last_four=0.75)
    status, out, _ = suite("--seeds", 2)
    assert status == 0
    assert ran(tmp_path) == list(features.LAYERS)
    folder = tmp_path / "suite"
    found = json.loads((folder / "results.json").read_text())
    assert found["last"] == {
        "medians": {"dev/score": 0.25, "dev/f1": 0.25},
        "dev/f1": {"min": 0.15, "max": 0.35},
        "seeds": 2,
        "published": 0.949,
        "workdir": str(folder / "last"),
    }
    table = (folder / "table.md").read_text()
    assert "| layers | dev F1, median | spread | seeds | BERT-base, published |" in table
    assert "| concatenation of last four | 75.0 | 65.0 to 85.0 | 2 | 96.1 |" in table
    assert "| sum of last four | 50.0 | 40.0 to 60.0 | 2 | - |" in table
    assert json.loads(out.splitlines()[-1])["dev/f1"]["last"] == 0.25


def test_the_published_figures():
    """Devlin et al. 2019, table 7."""
    known = [figure for _, figure in features.PUBLISHED.values() if figure]
    assert known == [91.0, 95.6, 94.9, 95.9, 96.1, 95.5, 96.4]
    assert set(features.LAYERS) == set(features.PUBLISHED) - {"fine_tuning"}


def test_only_failed_rows_are_run_again_and_rows_can_be_added(suite, stand_in, tmp_path):
    stand_in(last="broken")
    status, out, printed = suite("--layers", "embeddings,last")
    assert status == 2
    assert "last: failed (no such luck)" in printed
    assert "1 of 2 runs failed, the others are done: " in printed
    assert "last hidden" not in out
    stand_in()
    assert suite("--layers", "embeddings,last")[0] == 0
    assert suite("--layers", "embeddings,last")[2] == ""
    status, out, _ = suite("--layers", "second_to_last")
    assert status == 0
    assert ran(tmp_path) == ["embeddings", "last", "last", "second_to_last"]
    rows = [line.split("  ")[0] for line in out.splitlines()[2:-1]]
    assert rows == ["embeddings", "second-to-last hidden", "last hidden"]


def test_a_workdir_belongs_to_one_encoder_and_its_data(suite, run_of_two_layers, tmp_path):
    assert suite("--layers", "last")[0] == 0
    status, _, printed = suite("--layers", "last", init=run_of_two_layers)
    assert (status, printed.count("\n")) == (2, 1)
    assert f'features.init: "random:{tmp_path / "deep"}" in the folder' in printed
    assert suite("--layers", "last", "--data", tmp_path)[0] == 2
    other = tmp_path / "other.py"
    recipe = "ner.get_config('conll2003,features,tiny')"
    other.write_text(f"from configs import ner\ndef get_config(argument): return {recipe}\n")
    status, _, printed = suite("--layers", "embeddings", "--config", other)
    assert (status, printed.count("\n")) == (2, 1)
    assert "features.recipes.conll2003." in printed


def fine_tuning(folder, encoder="random", task="ner"):
    spread = {"median": 0.9, "min": 0.8, "max": 0.95}
    results = {"status": "complete", "seeds": 5, "task": task, "over_seeds": {"dev/f1": spread}}
    results["init"] = {"name": "runs/other", "encoder": encoder}
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(results))


def test_a_fine_tuning_run_of_the_same_encoder_is_an_additional_row(suite, tmp_path):
    fine_tuning(tmp_path / "ner")
    status, out, _ = suite("--layers", "last", "--finetuned", tmp_path / "ner")
    assert status == 0
    assert out.splitlines()[3].split() == ["fine-tuning", "90.0", "80.0", "to", "95.0", "5", "96.4"]
    fine_tuning(tmp_path / "other", encoder="9c1d")
    fine_tuning(tmp_path / "rte", task="rte")
    for name, message in (
        ("other", "was initialised from another encoder"),
        ("rte", "expected the --workdir"),
    ):
        status, _, printed = suite("--layers", "last", "--finetuned", tmp_path / name)
        assert (status, printed.count("\n")) == (2, 1)
        assert message in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "lst"], "--layers lst: no layers 'lst': did you mean 'last'?"),
        (["--seeds", "0"], "--seeds: got 0, expected an integer >= 1"),
        (
            ["--recipe", "smal"],
            "unknown config argument 'features,smal': did you mean 'features,small'?",
        ),
        (["--config.task.layers=last"], "choose them with --layers"),
        (["--config.task.lstm_sise=8"], "no field 'lstm_sise'"),
    ],
)
def test_a_user_error_is_one_line_before_anything_runs(suite, tmp_path, words, message):
    status, out, errors = suite(*words)
    assert (status, out) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert not ran(tmp_path)


def test_too_few_layers_are_refused_with_the_possible_rows(suite, run_of_two_layers):
    status, _, printed = suite("--layers", "last,sum_last_four", init=run_of_two_layers)
    assert (status, printed.count("\n")) == (2, 1)
    assert "'sum_last_four': got 2, expected 4 or more; choose among" in printed
    assert "embeddings, second_to_last, last, weighted_sum_all" in printed
    fitting = ["embeddings", "second_to_last", "last", "weighted_sum_all"]
    assert features.find_layers(f"random:{run_of_two_layers}") == fitting
