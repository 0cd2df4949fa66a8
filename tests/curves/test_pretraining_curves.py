"""Golden curves of pretraining: twenty steps of every recipe, shrunk; all parameters change."""

import pathlib
import re

import numpy as np
import pytest

from bertjax.config import fingerprint
from bertjax.runs import pretrain_job
from bertjax.train.checkpoint import trees
from bertjax.train.checkpoint.restore import load_numpy

CONFIGS = pathlib.Path(__file__).resolve().parent.parent.parent / "configs"
PRETRAINING = (
    "quickstart.py",
    "bert.py:tiny",
    "large_batch.py:lamb_64k",
    "students.py:distilbert_alone",
    "bert_wwm.py:tiny",
    "mup.py:256",
    "roberta.py:tiny",
    "modernbert.py:tiny",
    "neobert.py:tiny",
    "mosaicbert.py:tiny",
    "crammed_bert.py:tiny",
    "spanbert.py:tiny",
    "albert.py:tiny",
    "electra.py:tiny",
    "deberta.py:tiny",
    "gpt_bert.py:tiny",
    "xlnet.py:tiny",
    "gpt1.py:tiny",
    "gpt2.py:tiny",
    "gpt3.py:tiny",
    "transformer.py:tiny",
    "reversal.py",
    "span_corruption.py:tiny",
    "text_infilling.py:tiny",
    "masked_seq2seq.py:tiny",
    "unilm.py:tiny",
    "elmo.py:tiny",
    "universal_transformer.py:tiny",
    "vit.py:tiny",
)
SAME_PROGRAM = {
    "bert_mini_hour.py": "quickstart.py",
    "family.py:bert": "quickstart.py",
    "bert_masks30.py:tiny": "bert.py:tiny",
    "language_models.py:gpt": "gpt3.py:tiny",
}
"""Recipes without a curve: their step is that of one with a curve, with other constants."""
CONSTANTS = [
    *("*_every", "eval_examples", "data.input", "model.initializer_range"),
    *("model.position_initializer", "objectives.mlm.masked_lm_prob"),
    # Without dropout, as quickstart.py; without microbatches, as gpt1.py.
    *("model.size", "model.*dropout*", "data.batch_size", "data.microbatches"),
]
DEFAULT = {"quickstart.py"}
"""From text to checkpoint; the others with `--all`."""
DISTILLATION = {
    # Each with the objective that uses a teacher, which is the run of bert.py:tiny.
    "distilbert.py:tiny": "soft_targets",
    "tinybert.py:tiny": "layer_matching",
}
TUNING = ("glue", "task", "multilingual", "squad", "ner", "race", "kbert", "tinybert_glue")
TUNING += ("superglue", "pairs", "cross_encoder", "colbert")
"""Configs of tasks, whose curves test_task_curves.py follows; a table and texts of several
languages have the head of GLUE."""


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.slow) for name in PRETRAINING],
)
def test_a_pretraining_curve(recipe, pretrain, follows, tmp_path):
    job = pretrain(recipe, tmp_path)
    follows(f"pretrain_{recipe.partition('.')[0]}", tmp_path)
    check_all_parameters_change(job)


def check_all_parameters_change(job: pretrain_job.Job) -> None:
    """Check that every array of the encoder changes, except for a pooler without a loss."""
    first = trees.flatten_names(job.trainer.create_state().params["encoder"])
    last = load_numpy(
        job.workdir / "checkpoints" / str(job.config.num_train_steps), "params/encoder"
    )
    last = trees.flatten_names(last)
    same = {name for name in first if np.array_equal(first[name], last[name])}
    pooler = {name for name in first if name.startswith("pooler/")}
    assert same == (set() if "sentence_pair" in job.config.objectives else pooler)


@pytest.mark.parametrize("recipe", DISTILLATION)
@pytest.mark.slow
def test_a_distillation_curve(recipe, pretrained, pretrain, follows, tmp_path):
    teacher = {f"objectives.{DISTILLATION[recipe]}.teacher": str(pretrained)}
    job = pretrain(recipe, tmp_path, **teacher)
    follows(f"pretrain_{recipe.partition('.')[0]}", tmp_path)
    check_all_parameters_change(job)


@pytest.mark.parametrize("recipe", SAME_PROGRAM)
def test_recipes_without_a_curve_have_the_program_of_one_with(recipe, shrunk):
    assert SAME_PROGRAM[recipe] in PRETRAINING
    programs = {fingerprint(shrunk(name), CONSTANTS) for name in (recipe, SAME_PROGRAM[recipe])}
    assert len(programs) == 1


def test_every_config_of_a_pretraining_has_a_curve():
    """A new file in configs/ must be in PRETRAINING, unless it is another size of one there."""
    known = {recipe.partition(".")[0] for recipe in (*PRETRAINING, *SAME_PROGRAM, *DISTILLATION)}
    for path in CONFIGS.glob("*.py"):
        other_size = re.search(r"the config of `configs/(\w+)\.py:\w+`", path.read_text())
        name = other_size[1] if other_size else path.stem
        assert name in {*known, *TUNING, "common"}, f"{path.name} has no golden curve"
