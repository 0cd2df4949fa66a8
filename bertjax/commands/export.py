"""Export a run to a Hugging Face model folder, with a model card."""

import argparse
import os
import sys

from bertjax.commands import _flags
from bertjax.validation.unused_options import UnusedOptions, check_flags

GROUP = "Exchange"

EPILOG = """\
examples:
  bertjax export --model runs/bert --output bert-hf/
  bertjax export --model runs/bert@best --output bert-hf/ --scores runs/mrpc runs/rte
  bertjax export --model runs/mrpc --output mrpc-hf/
  bertjax export --model runs/squad2 --output squad2-hf/
  bertjax export --model runs/electra --output generator-hf/ --generator
  bertjax export --model runs/pairs --output encoder-st/ --format sentence-transformers

  python -c "import transformers; transformers.AutoModel.from_pretrained('bert-hf/')"

--model is a pretraining run: RUN is its newest checkpoint, RUN@STEP or RUN@best another one; or a
fine-tuning run that kept its checkpoints (--config.keep_checkpoints=true): the seed with the
median dev score, or RUN/seed_N. The folder contains model.safetensors, config.json, the tokenizer
and README.md: steps, corpus, held-out loss, config, and the scores of the fine-tuning runs of
--scores.

Architectures (model_type of config.json):
{architectures}
SpanBERT and TinyBERT are exported as BERT. All but GPT, GPT-2, GPT-BERT and LTG-BERT are also
exported with heads fine-tuned on GLUE, SQuAD, CoNLL, RACE or SWAG. Heads that transformers does not
have are left out, with a message. Of an ELECTRA the discriminator is exported, which is the model
to fine-tune.
GPT-BERT and LTG-BERT are not in transformers: to open their folders there, add the code of a
released one, the *.py files and auto_map of config.json.

--format sentence-transformers writes the encoder alone, with modules.json and the settings of
prompts, pooling, normalisation and length, so that SentenceTransformer(HF_DIR) computes the vectors
of `bertjax embed`. They are those of the run (`bertjax finetune --config pairs`, or an imported
folder of sentence-transformers); for other runs mean over the tokens, not normalised.
"""

_UNUSED_OPTIONS = (
    UnusedOptions(
        ("pooling", "query_prompt", "document_prompt", "normalize", "max_length"),
        "format",
        lambda name: name == "transformers",
        "sentence-transformers, since transformers does not store how texts are embedded",
        "set --format sentence-transformers, or leave it out",
    ),
    UnusedOptions(
        ("generator",),
        "format",
        lambda name: name == "sentence-transformers",
        "transformers",
        "leave one of the two out",
    ),
)


def main(argv: list[str]) -> None:
    """Exports a run, and prints the class of the model and the parts that are left out."""
    own = parser()
    arguments = own.parse_args(argv)
    check_flags(_UNUSED_OPTIONS, vars(arguments), own.get_default)
    os.environ["JAX_PLATFORMS"] = "cpu"

    from bertjax.huggingface import exporting
    from bertjax.io import storage

    target = storage.to_path(arguments.output)
    source = exporting.find(arguments.model)
    embedding = None
    if arguments.format == "sentence-transformers":
        embedding = exporting.with_pooling(
            source,
            arguments.pooling,
            normalize=arguments.normalize,
            max_length=arguments.max_length,
            prompts={"query": arguments.query_prompt, "document": arguments.document_prompt},
        )
    made = exporting.write(
        source, target, arguments.scores, generator=arguments.generator, embedding=embedding
    )
    for reason in dict.fromkeys(made.left_out.values()):
        parts = ", ".join(part for part, why in made.left_out.items() if why == reason)
        print(f"left out ({reason}): {parts}", file=sys.stderr)
    if made.remote_code:
        print(
            f"warning: {made.class_name} is not in transformers: add the code of a released folder "
            "(docs/hugging_face.md)",
            file=sys.stderr,
        )
    print(f"{target}: {made.class_name} with {made.parameters:,} parameters")


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser(
        "bertjax export",
        __doc__,
        EPILOG.format(architectures=_flags.architectures()),
        renamed={"--from": "--model", "--to": "--output"},
    )
    _flags.add_model(parser, "RUN (newest checkpoint), RUN@STEP or RUN@best")
    parser.add_argument("--output", metavar="HF_DIR", required=True, help="a new folder")
    parser.add_argument(
        "--format",
        default="transformers",
        choices=["transformers", "sentence-transformers"],
        help="the library that opens the folder",
    )
    _flags.add_pooling(parser)
    _flags.add_retrieval_prompts(parser)
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="scale vectors to unit length; for sentence-transformers (default: as in the run, or "
        "no)",
    )
    _flags.add_max_length(parser)
    parser.add_argument(
        "--generator",
        action="store_true",
        help="export the generator of an ELECTRA, a masked LM",
    )
    parser.add_argument(
        "--scores",
        nargs="+",
        default=[],
        metavar="RUN",
        help="fine-tuning runs of this checkpoint, for the scores of the model card",
    )
    return parser
