"""The command that fine-tuning prints at its end, which uses the model."""

import pytest

from bertjax import config as configs
from bertjax.commands import finetune


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
