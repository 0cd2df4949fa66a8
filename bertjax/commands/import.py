"""Import a Hugging Face model folder, or a released ELMo, as a run to fine-tune."""

import argparse
import os
import shlex
import sys

EPILOG = """\
examples:
  bertjax import --from bert-base-uncased/ --to runs/bert_base
  bertjax finetune --config configs/glue.py:rte --init runs/bert_base --data glue \\
      --workdir runs/rte
  bertjax import --from my-rte-classifier/ --to runs/rte --task rte
  bertjax import --from my-sst2-classifier/ --to runs/sst2 --task sst2 --labels positive negative
  bertjax export --from runs/bert_base --to bert-base-again/

--from is a folder with config.json, model.safetensors and a tokenizer, as save_pretrained writes it
or `hf download NAME --local-dir DIR` fetches it. Every array must find its place: names and shapes
that do not fit are listed, and nothing is written. Known are BERT, RoBERTa, ALBERT, ELECTRA (either
of its two models), DistilBERT, XLNet, GPT and GPT-2, with the heads that they were pretrained with
or, but for GPT's, one for a task: classes of texts (GLUE), multiple choice (RACE, SWAG), answers
within a text (SQuAD), classes of words (NER).

The classes of a GLUE task may be in any order in config.json (id2label); their names are compared
with the task's without regard to case, spaces, _ and -. `bertjax predict` prints them as they are
spelled there, `bertjax export` restores their order. Where config.json has other names, or none
(LABEL_0, LABEL_1), --labels states the task's names in the order of the classifier's outputs.

ELMo is a folder with options.json and lm_weights.hdf5, or longer names that end so; reading it
needs h5py (pip install 'bertjax[elmo]'). It reads any word by its characters; text is split at
white space, as released, unless --tokenizer names a tokenizer of whole words.
"""

_BERT_BASE_WIDTH = 768


def main(argv: list[str]) -> None:
    """Imports, and tells what was taken."""
    arguments = _parser().parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"

    from bertjax.huggingface import architecture, importing
    from bertjax.huggingface import heads as huggingface_heads
    from bertjax.io import copies, storage
    from bertjax.train.checkpoint.trees import num_parameters

    source, target = copies.local_copy(arguments.source), storage.to_path(arguments.target)
    made = importing.read(
        source,
        task=arguments.task,
        vocabulary=arguments.tokenizer,
        labels=arguments.labels,
    )
    importing.write(made, target)
    for warning in made.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if made.left_behind:
        print(f"left behind: {', '.join(made.left_behind)}", file=sys.stderr)
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
        print(f"next  bertjax generate --init {place} 'The first words of a text'")
        return
    if "task" in made.config:
        print(f"next  bertjax predict --init {place} --input TEXTS")
    # Encoders smaller than BERT-base need more than its learning rate (Turc et al. 2019).
    recipe = "mrpc,small" if made.config.model.hidden_size < _BERT_BASE_WIDTH else "mrpc"
    activation = importing.classifier_act(made.config)
    option = "" if activation == "tanh" else f" --config.task.pooler_act={activation}"
    print(
        f"next  bertjax finetune --config configs/glue.py:{recipe} --init {place} "
        f"--data GLUE_FOLDER --workdir {shlex.quote(f'{target}_mrpc')}{option}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax import",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--from", dest="source", metavar="HF_DIR", required=True, help="what transformers saved"
    )
    parser.add_argument(
        "--to", dest="target", metavar="RUN", required=True, help="a new folder for the run"
    )
    parser.add_argument(
        "--task",
        default="",
        help="the task of its head, where config.json does not say it: one of GLUE, race or swag, "
        "squad1 or squad2, ner; none: leave the head behind",
    )
    parser.add_argument(
        "--labels",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names of the classifier's outputs in their order, where config.json does not name "
        "them or names them wrongly",
    )
    parser.add_argument(
        "--tokenizer", default="", help="folder or file of its tokenizer (default: in HF_DIR)"
    )
    return parser
