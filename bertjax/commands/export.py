"""Write a run as a folder that Hugging Face transformers opens, with a model card."""

import argparse
import os
import sys

EPILOG = """\
examples:
  bertjax export --from runs/bert --to bert-hf/
  bertjax export --from runs/bert@best --to bert-hf/ --scores runs/mrpc runs/rte
  bertjax export --from runs/mrpc --to mrpc-hf/
  bertjax export --from runs/squad2 --to squad2-hf/
  bertjax export --from runs/electra --to generator-hf/ --generator

  python -c "import transformers; transformers.AutoModel.from_pretrained('bert-hf/')"

--from is a pretraining run: RUN is its newest checkpoint, RUN@STEP or RUN@best another one; or a
fine-tuning whose checkpoints were kept (--config.keep_checkpoints=true): the seed whose dev score
is the median, or RUN/seed_N. Written are model.safetensors, config.json, the tokenizer and
README.md: steps, corpus, held-out loss, config, and the scores of the fine-tunings that --scores
names.

BERT (with SpanBERT, TinyBERT and whatever else is BERT with other objectives), RoBERTa, ALBERT,
ELECTRA, DistilBERT, XLNet, GPT and GPT-2 have a place in transformers; all but the last two also
with what was fine-tuned on GLUE, SQuAD, CoNLL, RACE or SWAG. Heads that have no place there are
left behind, and told. Of an ELECTRA the discriminator is exported, which fine-tuning takes.
"""


def main(argv: list[str]) -> None:
    """Exports, and tells what was written."""
    arguments = _parser().parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"

    from bertjax.huggingface import exporting
    from bertjax.io import storage

    target = storage.to_path(arguments.target)
    source = exporting.find(arguments.source)
    made = exporting.write(source, target, arguments.scores, generator=arguments.generator)
    for reason in dict.fromkeys(made.left_behind.values()):
        parts = ", ".join(part for part, why in made.left_behind.items() if why == reason)
        print(f"left behind, for {reason}: {parts}", file=sys.stderr)
    print(f"{target}: {made.class_name} with {made.parameters:,} parameters")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax export",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--from", dest="source", metavar="RUN", required=True, help="RUN, RUN@STEP or RUN@best"
    )
    parser.add_argument("--to", dest="target", metavar="HF_DIR", required=True, help="a new folder")
    parser.add_argument(
        "--generator",
        action="store_true",
        help="of an ELECTRA the generator, a model for masked tokens",
    )
    parser.add_argument(
        "--scores",
        nargs="+",
        default=[],
        metavar="RUN",
        help="fine-tunings of this checkpoint, whose scores the card shows",
    )
    return parser
