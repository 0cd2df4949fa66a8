r"""TinyBERT on a GLUE task: `configs/tinybert_glue.py:TASK,STAGE`, and `:TASK,STAGE_tiny`.

Paper: Jiao et al. 2020, sections 3.2 and 4.2. Both stages distil the same fine-tuned teacher:
`layers` matches its layers, with projections initialised from those of the general stage, then
`prediction` matches its logits, or its score; labels are used only for the reported accuracy. A
teacher is a run
of `configs/glue.py` that kept its checkpoints:

    bertjax finetune --config configs/glue.py:mrpc --init runs/bert_base --data glue \
        --workdir runs/teacher --config.keep_checkpoints=true
    bertjax finetune --config configs/tinybert_glue.py:mrpc,layers --init runs/tinybert_4 \
        --data glue --workdir runs/mrpc_layers \
        --config.objectives.layer_matching.teacher=runs/teacher/seed_0
    bertjax finetune --config configs/tinybert_glue.py:mrpc,prediction \
        --init runs/mrpc_layers/seed_0 --data glue --workdir runs/mrpc_tinybert \
        --config.objectives.soft_targets.teacher=runs/teacher/seed_0

Published test scores of the 4 layers, with data augmentation (section 3.2), which is not part of
this recipe:

    task   metric               TinyBERT 4
    cola   Matthews             44.1
    sst2   accuracy             92.6
    mrpc   F1                   86.4
    stsb   Spearman             80.4
    qqp    F1                   71.3
    mnli   matched / mismatched 82.5 / 81.8
    qnli   accuracy             87.7
    rte    accuracy             66.6

Recipe: 20 epochs of `layers` at a constant 5e-5, 3 of `prediction` at 3e-5 (published: 1e-5, 2e-5
or 3e-5), batches of 32. `tiny` takes seconds and is for tests.

Where we differ from the released code: it trains STS-B on the labels; its table of defaults has 50
epochs of CoLA, 10 of SST-2 and QNLI, 5 of MNLI and QQP.
"""

from ml_collections import ConfigDict

from configs import common, glue

TASKS = glue.TASKS
RECIPES = ("layers", "prediction", "layers_tiny", "prediction_tiny")


def get_config(argument: str) -> ConfigDict:
    """Returns the config of a stage for a task.

    Raises:
      UserError: Unknown task or stage.
    """
    task, _, recipe = argument.partition(",")
    common.check_argument(recipe, RECIPES)
    stage, _, tiny = recipe.partition("_")
    config = glue.get_config(f"{task},{tiny}")
    config.task.weight = 0.0
    if stage == "layers":
        objectives = {"layer_matching": {"teacher": "", "weight": 1.0, "layer_map": ()}}
        config.model.output_hidden_states = True
        config.keep_checkpoints = True
    else:
        objectives = {
            "soft_targets": {
                "teacher": "",
                "of": "glue",
                "weight": 1.0,
                "temperature": 1.0,
                "init_from_teacher": False,
            }
        }
    config.objectives = ConfigDict(objectives)
    if not tiny:
        config.num_train_epochs = {"layers": 20, "prediction": 3}[stage]
        config.optimizer.learning_rate = {"layers": 5e-5, "prediction": 3e-5}[stage]
        if stage == "layers":
            config.optimizer.update(schedule="constant", warmup_share=0.0)
    return config
