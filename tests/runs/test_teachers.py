"""Teachers: lookup, checks, frozen parameters, and student checkpoints without them."""

import dataclasses
import pathlib
import shutil

import jax
import numpy as np
import pytest

from bertjax.config import load_config, to_json
from bertjax.errors import UserError
from bertjax.runs import finetune, finetune_job, pretrain_job, teachers
from bertjax.runs import pretrain as runs_pretrain
from bertjax.runtime.interrupt import Interrupt
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import restore, trees
from bertjax.train.metric_records import read_metrics

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 6
SHRUNK = {
    "model.vocab_size": "140",
    "model.hidden_size": "12",
    "model.num_attention_heads": "2",
    "model.intermediate_size": "16",
    "model.max_position_embeddings": "16",
    "model.precision": "float32",
    "data.phases": "()",
    "data.max_seq_length": "16",
    "data.batch_size": "8",
    "data.validation_fraction": "0.2",
    "tokenizer.vocab_size": "140",
    "num_train_steps": str(STEPS),
    "optimizer.learning_rate": "0.01",
    "optimizer.warmup_steps": "2",
    "log_every": "1",
    "eval_every": "0",
    "eval_examples": "8",
    "checkpoint_every": "3",
}
WORDS = ["".join(letters) for letters in np.random.default_rng(2).choice([*"abcdefghij"], (90, 5))]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> pathlib.Path:
    """A folder with a text, and a teacher of four layers trained on it."""
    folder = tmp_path_factory.mktemp("teaching")
    chance = np.random.default_rng(0)
    documents = [
        "\n".join(" ".join(chance.choice(WORDS, 7)) + "." for _ in range(8)) for _ in range(40)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    pretrain(folder, "bert.py:tiny", "teacher", {"model.num_hidden_layers": "4"})
    return folder


def job_of(home, recipe, name, fields) -> pretrain_job.Job:
    shared = {"data.input": f"({str(home / 'text.txt')!r},)", "data.cache": str(home / "cache")}
    config = load_config(f"{ROOT}/configs/{recipe}", (SHRUNK | shared | fields).items())
    return pretrain_job.prepare(config, str(home / name), log=lambda _: None)


def pretrain(home, recipe, name, fields) -> pretrain_job.Job:
    job = job_of(home, recipe, name, fields)
    (home / name).mkdir(exist_ok=True)
    (home / name / "config.json").write_text(to_json(job.config))
    summary, _ = runs_pretrain.train_job(job, Interrupt(), lambda _: None, lambda *_: [])
    assert summary
    return job


def student(home, teacher="teacher", **fields) -> dict[str, str]:
    named = {"objectives.soft_targets.teacher": str(home / teacher)}
    return {"model.num_hidden_layers": "2"} | named | fields


@pytest.fixture(scope="module")
def taught(home) -> pretrain_job.Job:
    return pretrain(home, "distilbert.py:tiny", "student", student(home))


def arrays(run: pathlib.Path, step: int = STEPS) -> dict:
    return trees.flatten_names(restore.load_numpy(run / "checkpoints" / str(step)))


def test_the_teacher_is_frozen_bit_for_bit(home, taught):
    params = restore.load_numpy(home / "teacher" / "checkpoints" / str(STEPS), "params")
    frozen = jax.device_get(taught.trainer.frozen["soft_targets"]["teacher"]["params"])
    assert set(frozen) == {"encoder", "mlm"}
    for part, tree in frozen.items():
        jax.tree.map(np.testing.assert_array_equal, tree, params[part])


def test_the_teacher_has_no_optimizer_state_and_is_in_no_checkpoint(home, taught):
    state = trees.flatten_names(taught.trainer.shapes)
    assert not [name for name in state if "teacher" in name or "soft_targets" in name]
    record = checkpoint_folder.read_record(home / "student" / "checkpoints" / str(STEPS))
    assert set(record.arrays) == set(state)
    # Two layers of the four, and of each array one copy and two moments.
    query = "encoder/layers/block/attention/query/kernel"
    shapes = [array["shape"][0] for name, array in record.arrays.items() if name.endswith(query)]
    assert shapes == [2, 2, 2]


def test_the_student_is_initialised_from_layers_of_the_teacher(home, taught):
    params = restore.load_numpy(home / "teacher" / "checkpoints" / str(STEPS), "params")
    state = jax.device_get(taught.trainer.create_state().params)
    for name, leaf in trees.flatten_names(state["encoder"]["layers"]).items():
        expected = trees.flatten_names(params["encoder"]["layers"])[name]
        np.testing.assert_array_equal(leaf, expected[[0, 3]])
    jax.tree.map(np.testing.assert_array_equal, state["mlm"], params["mlm"])


def test_a_resumed_student_is_bit_identical(home, taught):
    folder = home / "stopped"
    shutil.copytree(home / "student", folder)
    shutil.rmtree(folder / "checkpoints" / str(STEPS))
    for name in ("summary.json", "metrics.jsonl"):
        (folder / name).unlink()
    pretrain(home, "distilbert.py:tiny", "stopped", student(home))
    resumed, expected = arrays(folder), arrays(home / "student")
    assert resumed.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(resumed[name], leaf, err_msg=name)


def test_a_teacher_may_be_moved_but_not_changed(home, taught):
    shutil.copytree(home / "teacher", home / "moved")
    moved = job_of(home, "distilbert.py:tiny", "student", student(home, "moved"))
    assert moved.provenance == taught.provenance
    younger = job_of(home, "distilbert.py:tiny", "student", student(home, "teacher@3"))
    with pytest.raises(UserError, match="written with another teacher_of_soft_targets"):
        runs_pretrain.train_job(younger, Interrupt(), lambda _: None, lambda *_: [])


def test_the_description_names_the_teacher(home, taught):
    count = sum(leaf.size for leaf in jax.tree.leaves(taught.trainer.frozen))
    line = f"teacher     {count:,} of {home / 'teacher' / 'checkpoints' / str(STEPS)}, "
    assert line + "for soft_targets: frozen" in pretrain_job.description(taught)


def test_the_flops_of_a_teacher_are_those_of_its_forward_pass(taught):
    """A student without a teacher, and one with a teacher of equal size."""
    job, shape = taught, (8, 16)
    with_teacher = job.trainer.flops(job.rows, shape)
    forward = teacher_flops(job, shape)
    alone = dataclasses.replace(job.trainer, pretrainer=without_teacher(job))
    # Its loss computes the scores of the vocabulary once more.
    vocabulary = 8 * 3 * (140 * 12 + 12 * 12) * 2
    assert with_teacher == alone.flops(job.rows, shape) + forward + 3 * vocabulary


def without_teacher(job):
    pretrainer = job.trainer.pretrainer
    return pretrainer.clone(objectives={"mlm": pretrainer.objectives["mlm"]})


def teacher_flops(job, shape):
    """By hand: four layers of width 12 and the logits of 8 x 3 predictions, without a pooler."""
    batch, length = shape
    tokens, width, inner = batch * length, 12, 16
    layer = 4 * width * width + 2 * width * inner + 2 * length * width
    return 2 * (4 * tokens * layer + 8 * 3 * (140 * 12 + 12 * 12))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"teacher": ""},
            "objective soft_targets requires a teacher: set --config.objectives.soft_",
        ),
        ({"teacher": "nowhere"}, "the teacher of objective soft_targets: nowhere is not a run"),
        ({"teacher": "random:teacher"}, "expected a trained run"),
        ({"of": "'sbo'"}, "got mlm before it, expected 'sbo'; add one before soft_targets"),
    ],
)
def test_invalid_teachers_are_refused(fields, message, home, monkeypatch):
    monkeypatch.chdir(home)
    changed = {
        f"objectives.soft_targets.{name}": value.strip("'") for name, value in fields.items()
    }
    with pytest.raises(UserError, match=message):
        job_of(home, "distilbert.py:tiny", "never", student(home) | changed)


def test_a_teacher_with_another_tokenizer_is_refused(home):
    sizes = {"model.vocab_size": "120", "tokenizer.vocab_size": "120"}
    with pytest.raises(
        UserError, match=r"has another tokenizer \(140 tokens\) than this run \(120"
    ):
        job_of(home, "distilbert.py:tiny", "never", student(home) | sizes)


def test_a_teacher_with_fewer_positions_is_refused(home):
    longer = {"data.max_seq_length": "24", "model.max_position_embeddings": "24"}
    with pytest.raises(UserError, match="sequences of 24 tokens: expected at most 16"):
        job_of(home, "distilbert.py:tiny", "never", student(home) | longer)


@pytest.fixture(scope="module")
def glue(home) -> pathlib.Path:
    chance = np.random.default_rng(1)
    folder = home / "glue" / "CoLA"
    folder.mkdir(parents=True)
    for split, size in (("train", 24), ("dev", 9)):
        lines = [f"x\t{i % 2}\t\t{' '.join(chance.choice(WORDS, 5))} ." for i in range(size)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return home / "glue"


def fine_tune(home, glue, recipe, name, init, **fields):
    """Fine-tune one seed; returns its result and its job."""
    config = load_config(f"{ROOT}/configs/{recipe}", {"log_every": "1", **fields}.items())
    paths = {"init": str(home / init), "data": str(glue), "workdir": str(home / name)}
    job = finetune_job.prepare(config, **paths)
    (home / name).mkdir(exist_ok=True)
    (home / name / "config.json").write_text(to_json(job.config))
    return finetune.train_seed(job, 0, Interrupt()), job


SMALL = {"data.max_seq_length": "16", "data.padded_lengths": "(8, 16)", "num_train_epochs": "1"}


def test_the_stages_of_tinybert(home, glue):
    """General distillation, layers, prediction: each initialised from the stage before."""
    keep = {"keep_checkpoints": "true"}
    fine_tune(home, glue, "glue.py:cola,tiny", "cola", "teacher", **SMALL, **keep)
    assert (home / "cola" / "tokenizer").is_dir()
    own = {"objectives.layer_matching.teacher": str(home / "teacher")}
    pretrain(home, "tinybert.py:tiny", "tiny", {"model.num_hidden_layers": "2", **own})

    of = {"objectives.layer_matching.teacher": str(home / "cola" / "seed_0")}
    recipe = "tinybert_glue.py:cola,layers_tiny"
    result, job = fine_tune(home, glue, recipe, "layers", "tiny", **SMALL, **of)
    assert set(result["scores"]) == {"dev/matthews", "dev/score"}
    before, after = (newest(home / name, "encoder") for name in ("tiny", "layers/seed_0"))
    assert any(np.any(before[name] != after[name]) for name in after)
    # The projections to the teacher's width are transferred too, since the objective is the same.
    assert finetune_job.transferred_parts(job) == ["encoder", "layer_matching"]
    state = finetune_job.init_state(job, job.trainer(0))
    for name, leaf in newest(home / "tiny", "layer_matching").items():
        own = trees.flatten_names(state.params["layer_matching"])[name]
        np.testing.assert_array_equal(own, leaf)
    assert set(state.params) == {"encoder", "glue", "layer_matching"}

    of = {"objectives.soft_targets.teacher": str(home / "cola" / "seed_0")}
    recipe = "tinybert_glue.py:cola,prediction_tiny"
    arguments = (home, glue, recipe, "prediction", "layers/seed_0")
    result, job = fine_tune(*arguments, **SMALL, **of, keep_checkpoints="true")
    frozen = jax.device_get(job.trainer(0).frozen["soft_targets"]["teacher"]["params"])
    assert set(frozen) == {"encoder", "glue"}
    expected = newest(home / "cola" / "seed_0", "glue")
    for name, leaf in trees.flatten_names(frozen["glue"]).items():
        np.testing.assert_array_equal(leaf, expected[name])
    kept = newest(home / "prediction" / "seed_0", "")
    assert not [name for name in kept if "teacher" in name or "soft_targets" in name]
    metrics = read_metrics(home / "prediction" / "seed_0")
    losses = [line["soft_targets/loss"] for line in metrics if "soft_targets/loss" in line]
    assert len(losses) == job.config.num_train_steps
    assert min(losses) >= 0

    (home / "glue" / "book_review").mkdir()
    for split in ("train", "dev", "test"):
        path = home / "glue" / "book_review" / f"{split}.tsv"
        path.write_text("label\ttext_a\n" + "1\tabcde .\n0\tfghij .\n" * 8)
    sections = {"task.dataset": "book_review"}
    with pytest.raises(UserError, match="is fine-tuned on cola, this run on book_review"):
        fine_tune(home, glue, recipe, "never", "layers/seed_0", **SMALL, **of, **sections)
    of = {"objectives.soft_targets.teacher": str(home / "teacher")}
    with pytest.raises(UserError, match="not trained with 'glue': got mlm, sentence_pair; pass"):
        fine_tune(home, glue, recipe, "never", "layers/seed_0", **SMALL, **of)


def newest(run: pathlib.Path, part: str) -> dict:
    step = max(checkpoint_folder.steps(run / "checkpoints"))
    prefix = f"params/{part}".rstrip("/")
    return trees.flatten_names(restore.load_numpy(run / "checkpoints" / str(step), prefix))


def test_a_fine_tuned_run_without_checkpoints_is_refused_as_teacher(home, glue):
    fine_tune(home, glue, "glue.py:cola,tiny", "forgotten", "teacher", **SMALL)
    section = {"soft_targets": {"teacher": str(home / "forgotten" / "seed_0"), "of": "glue"}}
    with pytest.raises(UserError, match="of a fine-tuning with --config"):
        teachers.find(section)
