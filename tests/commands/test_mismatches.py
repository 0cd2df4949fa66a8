"""Every verb with an input of another verb: one line and status 2, without traceback or result."""

import contextlib
import io
import json
import pathlib
import shutil
import sys

import numpy as np
import pytest

from bertjax import build, cli
from bertjax import config as configs
from bertjax.config import FINE_TUNING, PRETRAINING
from bertjax.errors import UserError
from bertjax.huggingface import importing
from bertjax.profiling import dummy
from bertjax.runs import finetune_job
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import origin, trees

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
TINY = {
    "model.vocab_size": str(len(PIECES)),
    "model.hidden_size": "8",
    "model.num_hidden_layers": "1",
    "model.num_attention_heads": "2",
    "model.intermediate_size": "8",
}
RECIPES = ("bert.py:tiny", "gpt2.py:tiny", "reversal.py", "vit.py:tiny")


def write_run(config, tokenizer, params, folder: pathlib.Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in params.items()
    }
    importing.write(importing.Import(config, tokenizer, arrays, ()), folder)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> pathlib.Path:
    """A run of each kind, a tokenizer, a corpus, data of two tasks, and an unrelated folder."""
    home = tmp_path_factory.mktemp("home")
    (home / "vocab.txt").write_text("\n".join([*PIECES, ""]))
    tokenizer = tokenizers.load(home / "vocab.txt")
    tokenizer.save(str(home / "tokenizer"))
    for recipe in RECIPES:
        name = recipe.partition(".")[0]
        fields = {} if name == "vit" else TINY
        config = configs.load_config(f"{CONFIGS}/{recipe}", fields.items())
        phase = build.Phase(1, build.phases(config)[0].max_seq_length, 8)
        trainer, _ = dummy.build_trainer(config, phase, build.make_mesh(config))
        shapes = {
            name: leaf.shape for name, leaf in trees.flatten_names(trainer.shapes.params).items()
        }
        write_run(config, tokenizer, shapes, home / name)
    shutil.rmtree(home / "vit" / "tokenizer")  # it reads images
    recipe = configs.load_config(f"{CONFIGS}/glue.py:mrpc,tiny")
    config = finetune_job.with_origin(recipe, origin.resolve(str(home / "bert")))
    shapes = importing.parameter_shapes(importing.pretrainer(config, tokenizer))
    write_run(config, tokenizer, shapes, home / "mrpc")
    (home / "mrpc" / "seed_0").mkdir()
    (home / "mrpc" / "checkpoints").rename(home / "mrpc" / "seed_0" / "checkpoints")
    (home / "text.txt").write_text("a b c.\n\nd e f.\n")
    (home / "suite").mkdir()
    (home / "suite" / "config.json").write_text('{"glue": {"init": "runs/bert"}}')
    (home / "released").mkdir()
    (home / "released" / "config.json").write_text('{"model_type": "bert"}')
    (home / "none").mkdir()
    (home / "none" / "config.json").write_text("{}")
    question = {"question": "a", "choices": ["b", "c"], "answer": 0}
    (home / "questions.jsonl").write_text(json.dumps(question) + "\n")
    (home / "pairs.csv").write_text("sentence1,sentence2,score\na,b,1\nb,c,2\n")
    (home / "glue" / "RTE").mkdir(parents=True)
    return home


@pytest.fixture
def run_cli(home, tmp_path, monkeypatch):
    """Run a command with HOME and OUT replaced; return status, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        words = [word.replace("HOME", str(home)).replace("OUT", str(tmp_path)) for word in words]
        out, errors = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a [MASK]\n")))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = cli.main(words)
        return status, out.getvalue(), errors.getvalue()

    return run


def refused(result: tuple[int, str, str]) -> str:
    """Check that a command writes nothing and prints one line, and return it."""
    status, out, errors = result
    assert (status, out, errors.count("\n")) == (2, "", 1), errors
    return errors


def config_of(recipe: str) -> str:
    return f"{CONFIGS}/{recipe}"


PRETRAINS = {
    "pretrain": ("--workdir", "OUT/run"),
    "bench": (),
    "plan": ("--topology", "v5e:2x2"),
}
FINE_TUNES = ("--init", "HOME/bert", "--data", "HOME/glue", "--workdir", "OUT/run")


@pytest.mark.parametrize("verb", PRETRAINS)
def test_a_config_of_a_task_is_not_pretrained(run_cli, tmp_path, verb):
    # The overrides are those of a pretraining, so that only the config is wrong.
    words = ("--config", config_of("glue.py:mrpc"), "--config.data.corpus=HOME/corpus")
    line = refused(run_cli(verb, *words, *PRETRAINS[verb]))
    assert "got a fine-tuning config (it has a section 'task')" in line
    assert "run this one with bertjax finetune" in line
    assert not list(tmp_path.iterdir())


def test_a_config_without_a_task_is_not_fine_tuned(run_cli, tmp_path):
    line = refused(run_cli("finetune", "--config", config_of("bert.py:tiny"), *FINE_TUNES))
    assert "got a pretraining config (it has no section 'task')" in line
    assert "run this one with bertjax pretrain" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "recipe"), [(PRETRAINING, "bert.py:tiny"), (FINE_TUNING, "glue.py:mrpc")]
)
def test_a_config_that_lacks_a_field_is_refused_by_its_name(kind, recipe):
    whole = configs.load_config(config_of(recipe), kind=kind)
    for field in kind.fields:
        if field == "task.name":
            continue
        config = configs.from_json(configs.to_json(whole)).unlock()
        *sections, name = field.split(".")
        section = config
        for each in sections:
            section = section[each]
        del section[name]
        with pytest.raises(UserError) as caught:
            kind.check(config, "mine.py")
        assert f" config lacks {field}; add them as in {kind.example}" in str(caught.value)
    with pytest.raises(UserError, match=r"lacks .* and \d+ more; add them"):
        kind.check(configs.from_json('{"task": {}}' if kind.has_task else "{}"), "mine.py")


RUNS = {
    "fill-mask": ("--model", "RUN"),
    "generate": ("--model", "RUN", "a b"),
    "evaluate perplexity": ("--model", "RUN", "--input", "HOME/text.txt"),
    "evaluate choices": ("--model", "RUN", "--input", "HOME/questions.jsonl"),
    "evaluate sts": ("--model", "RUN", "--data", "HOME/pairs.csv"),
    "predict": ("--model", "RUN"),
    "embed": ("--model", "RUN", "--input", "HOME/text.txt", "--output", "OUT/made.npz"),
    "export": ("--model", "RUN", "--output", "OUT/made"),
    "import": ("--model", "RUN", "--workdir", "OUT/made"),
    "finetune": (
        *("--config", config_of("glue.py:rte,tiny"), "--init", "RUN"),
        *("--data", "HOME/glue", "--workdir", "OUT/made"),
    ),
    "tokenizer encode": ("--tokenizer", "RUN"),
    "prepare": ("--input", "HOME/text.txt", "--tokenizer", "RUN", "--output", "OUT/made"),
    "sweep status": ("--workdir", "RUN"),
    "inspect": ("RUN",),
}
NO_RUNS = (
    *("HOME/suite", "HOME/released", "HOME/none", "HOME/glue", "HOME/text.txt", "HOME/absent"),
    *("HOME/bert@7", "random", "random:HOME/suite", "ftp://host/run", "x" * 300, ""),
)
TAKEN = ("inspect", "HOME/suite")
"""A suite has a folder of its own, which inspect describes."""


@pytest.mark.parametrize(
    ("verb", "run"), [(verb, run) for verb in RUNS for run in NO_RUNS if (verb, run) != TAKEN]
)
def test_a_folder_that_is_not_a_run_is_one_line(run_cli, tmp_path, verb, run):
    words = [word.replace("RUN", run) for word in RUNS[verb]]
    refused(run_cli(*verb.split(), *words))
    assert not list(tmp_path.iterdir())


WRONG = {
    "fill-mask": ("gpt2", "reversal", "vit", "mrpc/seed_0"),
    "generate": ("bert", "vit", "mrpc/seed_0"),
    "evaluate perplexity": ("bert", "reversal", "vit", "mrpc/seed_0"),
    "evaluate choices": ("reversal", "vit", "mrpc/seed_0"),
    "evaluate sts": ("vit", "mrpc"),
    "predict": ("bert", "gpt2", "reversal", "vit", "mrpc"),
    "embed": ("vit", "mrpc"),
    "export": ("reversal", "vit", "mrpc"),
    "import": ("bert", "mrpc"),
    "finetune": ("vit", "mrpc"),
    "tokenizer encode": ("vit",),
    "prepare": ("vit",),
    "sweep status": ("bert", "mrpc"),
}


@pytest.mark.parametrize(
    ("verb", "run"), [(verb, run) for verb, runs in WRONG.items() for run in runs]
)
def test_a_run_of_another_kind_is_one_line(run_cli, tmp_path, verb, run):
    words = [word.replace("RUN", f"HOME/{run}") for word in RUNS[verb]]
    refused(run_cli(*verb.split(), *words))
    assert not list(tmp_path.iterdir())


def test_a_teacher_with_another_vocabulary_is_refused_before_anything_is_compiled(run_cli):
    teacher = "--config.objectives.soft_targets.teacher=HOME/bert"
    line = refused(run_cli("bench", "--config", config_of("distilbert.py:tiny"), teacher))
    assert "has another tokenizer (31 tokens) than this run (4,096)" in line


OUTPUTS = {
    "pretrain": ("--config", config_of("quickstart.py"), "--workdir", "PLACE"),
    "prepare": ("--input", "HOME/text.txt", "--tokenizer", "HOME/tokenizer", "--output", "PLACE"),
    "tokenizer train": ("--input", "HOME/text.txt", "--vocab_size", "50", "--output", "PLACE"),
    "export": ("--model", "HOME/bert", "--output", "PLACE"),
    "embed": ("--model", "HOME/bert", "--input", "HOME/text.txt", "--output", "PLACE.npz"),
    "evaluate choices": (
        *("--model", "HOME/gpt2", "--input", "HOME/questions.jsonl", "--output", "PLACE"),
    ),
}
PLACES = {
    "/proc/made": ("/proc/made", {"No such file or directory"}),
    "HOME/text.txt/below": ("text.txt", {"a file has this name", "Not a directory"}),
    "HOME/text.txt/below/that": ("text.txt/below", {"Not a directory"}),
    "x" * 300: ("x" * 300, {"File name too long"}),
}
"""Parts of the message for a path, and the reasons given by the operating system."""


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[:24])
@pytest.mark.parametrize("verb", OUTPUTS)
def test_a_path_that_cannot_be_written_is_named_with_the_reason(run_cli, verb, place):
    words = [word.replace("PLACE", place) for word in OUTPUTS[verb]]
    line = refused(run_cli(*verb.split(), *words))
    named, reasons = PLACES[place]
    assert named in line
    assert any(reason in line for reason in reasons)


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "--model", "HOME/reversal"),
        ("predict", "--model", "HOME/mrpc/seed_0"),
        ("embed", "--model", "HOME/bert", "--output", "OUT/made.npz"),
    ],
    ids=lambda words: words[0],
)
def test_an_empty_name_is_not_standard_input(run_cli, words):
    """For instance from an unset shell variable."""
    refused(run_cli(*words, "--input", ""))


@pytest.mark.parametrize(
    ("run", "words", "message"),
    [
        ("gpt2", "--top_k 5", "--top_k has no effect: got 5 with --temperature"),
        ("gpt2", "--num_beams 2 --top_p 0.9", "--top_p has no effect: got 0.9 with"),
        ("gpt2", "--seed 5", "set --temperature 1, or leave it out"),
        ("gpt2", "--length_penalty 2", "with --num_beams=1, expected an integer >="),
        ("reversal", "--num_beams 1 --length_penalty 2", "--length_penalty has no effect"),
        ("reversal", "--temperature 1", "--temperature has no effect"),
        ("gpt2", "--input x", "--input: got x, expected none with a TEXT"),
    ],
)
def test_flags_of_generate_without_effect_are_refused(run_cli, run, words, message):
    assert message in refused(run_cli("generate", "--model", f"HOME/{run}", *words.split(), "a b"))


def test_an_encoder_decoder_generates_targets_and_counts_exact_matches(run_cli):
    words = ("generate", "--model", "HOME/reversal", "--num_beams", "1", "--json")
    status, out, errors = run_cli(*words, "a b", "b c")
    assert status == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["source"] for row in rows] == ["a b", "b c"]
    assert errors.startswith("2 texts in ")
    pairs = [
        f"{row['source']}\t{text}" for row, text in zip(rows, (rows[0]["text"], "z"), strict=True)
    ]
    assert "exact match: 1 of 2 targets, 50.0%" in run_cli(*words, *pairs)[2]
