"""The lines of a fine-tuning run before its first step and after its last."""

import pytest

from bertjax import config as configs
from bertjax.commands import finetune
from bertjax.runs import finetune_job


def test_examples_that_are_left_out_are_counted_and_named():
    lines = finetune_job.describe_left_out(
        {"train": [f"q{n}" for n in range(7)], "dev": (), "test": ["x"]}
    )
    assert lines == "left out of train: 7: q0, q1, q2, q3, q4 and 2 more\nleft out of test: 1: x\n"


@pytest.mark.parametrize(
    ("recipe", "printed"),
    [
        ("pairs:tiny", "embed --model {} --input TEXTS --truncate --output vectors.npy"),
        ("cross_encoder:tiny", "evaluate retrieval --model bm25 --reranker {} --data BEIR_FOLDER"),
        ("colbert:tiny", "evaluate retrieval --model {} --data BEIR_FOLDER"),
        ("glue:rte+mrpc,tiny", "predict --model {} --task rte --input TEXTS"),
    ],
)
def test_the_next_command_is_one_that_uses_the_model(tmp_path, recipe, printed):
    seed = tmp_path / "seed_3"
    (seed / "checkpoints").mkdir(parents=True)
    arguments = finetune.parser().parse_args(["--config", recipe, "--workdir", str(tmp_path)])
    results = [{"seed": 3, "scores": {"dev/score": 1.0}}]
    message = finetune._result_message(configs.load_config(recipe, []), arguments, [], results)
    assert message.splitlines()[-1] == f"next     bertjax {printed.format(seed)}"
