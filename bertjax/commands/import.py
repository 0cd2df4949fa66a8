"""Import a Hugging Face model folder, or a released ELMo."""

import os
import shlex
import sys

from bertjax.commands import _flags

GROUP = "Exchange"

EPILOG = """\
examples:
  bertjax import --model bert-base-uncased/ --workdir runs/bert_base
  bertjax finetune --config glue:rte --init runs/bert_base --data glue \\
      --workdir runs/rte
  bertjax import --model my-rte-classifier/ --workdir runs/rte --task rte
  bertjax import --model my-sst2-classifier/ --workdir runs/sst2 --task sst2 \\
      --labels positive negative
  bertjax import --model my-classifier/ --workdir runs/mine --task sequence
  bertjax export --model runs/bert_base --output bert-base-again/

--model is a folder with config.json, model.safetensors and a tokenizer, as save_pretrained writes
it or `hf download NAME --local-dir DIR` downloads it. With PyTorch installed, pytorch_model.bin is
read, too. If names or shapes of arrays differ from the architecture, they are listed and nothing
is written.

Architectures (model_type of config.json):
{architectures}
Heads: those of pretraining, of either model of ELECTRA, and for all but GPT, GPT-BERT and LTG-BERT
those of tasks: text classification (GLUE), multiple choice (RACE, SWAG), question answering
(SQuAD), token classification (NER). GPT-BERT and LTG-BERT are recognised by the names of their
arrays, with any model_type; their *.py files are read, but not run.

The classes of a GLUE task may be in any order in config.json (id2label); their names are compared
with the task's without regard to case, spaces, _ and -. `bertjax predict` prints them with the
spelling of config.json, `bertjax export` restores their order. If config.json has other names, or
none (LABEL_0, LABEL_1), --labels specifies the task's names in the order of the classifier's
outputs.

--task sequence, or sequence_pair for pairs of texts, imports a classifier with any classes, named
by config.json or --labels, in the order of its outputs. sequence_pair is the default for a folder
of a CrossEncoder of sentence-transformers.

ELMo is a folder with options.json and lm_weights.hdf5, whose names may have prefixes; reading it
needs h5py (pip install 'bertjax[elmo]'). ELMo encodes any word by its characters; text is split at
white space, as in the released code, unless --tokenizer names a tokenizer of whole words.
"""

_BERT_BASE_WIDTH = 768


def main(argv: list[str]) -> None:
    """Imports a model and prints its architecture and heads."""
    arguments = parser().parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"

    from bertjax.huggingface import architecture, importing
    from bertjax.huggingface import heads as huggingface_heads
    from bertjax.io import copies, storage
    from bertjax.train.checkpoint.trees import num_parameters

    source, target = copies.local_copy(arguments.model), storage.to_path(arguments.workdir)
    made = importing.read(
        source,
        task=arguments.task,
        vocabulary=arguments.tokenizer,
        labels=arguments.labels,
    )
    importing.write(made, target)
    for warning in made.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if made.left_out:
        print(f"left out: {', '.join(made.left_out)}", file=sys.stderr)
    if "task" in made.config:
        heads = huggingface_heads.name_of(made.config)
    else:
        heads = ", ".join(made.config.objectives)
    print(
        f"{target}: {made.config.imported.model_type} with {num_parameters(dict(made.params)):,} "
        f"parameters; heads: {heads or 'none'}"
    )
    place = shlex.quote(str(target))
    if architecture.generates(made.config):
        print(f"next  bertjax generate --model {place} 'The first words of a text'")
        return
    if "task" in made.config:
        print(f"next  bertjax predict --model {place} --input TEXTS")
    # Encoders smaller than BERT-base need a higher learning rate than that (Turc et al. 2019).
    recipe = "mrpc,small" if made.config.model.hidden_size < _BERT_BASE_WIDTH else "mrpc"
    activation = importing.classifier_act(made.config)
    option = "" if activation in ("", "tanh") else f" --config.task.pooler_act={activation}"
    print(
        f"next  bertjax finetune --config glue:{recipe} --init {place} "
        f"--data GLUE_FOLDER --workdir {shlex.quote(f'{target}_mrpc')}{option}"
    )


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser(
        "bertjax import",
        __doc__,
        EPILOG.format(architectures=_flags.architectures()),
        renamed={"--from": "--model", "--to": "--workdir"},
    )
    _flags.add_model(parser, "a folder that save_pretrained wrote, or a released ELMo")
    parser.add_argument("--workdir", metavar="RUN", required=True, help="a new folder for the run")
    parser.add_argument(
        "--task",
        default="",
        help="the task of its head, if config.json does not name it: one of GLUE, sequence or "
        "sequence_pair, race, swag or copa, squad1 or squad2, ner; none: import without the head",
    )
    parser.add_argument(
        "--labels",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names of the classifier's outputs in their order, if config.json has none or other "
        "names",
    )
    parser.add_argument(
        "--tokenizer",
        default="",
        metavar="PATH",
        help="folder or file of its tokenizer (default: that of --model)",
    )
    return parser
