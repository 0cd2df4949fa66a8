"""Warnings of an import: fields that `config.json` leaves open, and the values assumed.

Each is one line, with the remedy if the assumption is wrong.
"""

from collections.abc import Iterator

from bertjax.huggingface import architecture as architectures
from bertjax.huggingface.model import HFModel
from bertjax.interfaces import Tokenizer
from bertjax.tokenizers.sentencepiece import SentencePieceTokenizer
from bertjax.tokenizers.special_tokens import KNOWN_SPECIALS

_CAUSAL = ("LMHeadModel", "ForCausalLM")
"""Endings of the names of classes that predict the next token."""

_MAX_TOKENS = 4
"""Number of tokens that a warning lists."""


def find_warnings(released: HFModel, task: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The warnings for a model whose config is accepted.

    Args:
      released: The model as it is imported, without the parts that are left out.
      task: The task that the user specifies; empty: that of its config.
      tokenizer: Tokenizer of the model.
    """
    head = architectures.task_of(released.parts)
    found = [*_of_class(released), *(_of_task(released, head, task) if head else ())]
    found += _of_tokenizer(released, tokenizer)
    return tuple(found)


def _of_class(released: HFModel) -> Iterator[str]:
    if architectures.attribute(released.architecture, "REMOTE_CODE"):
        return  # copies of the code have classes of other names
    classes = released.architecture.CLASSES
    heads = [part for part in released.parts if architectures.is_head(part)]
    imported_as = classes[architectures.heads_of_a_class(released.architecture, heads)]
    for name in released.config.get("architectures") or ():
        if name in classes.values():
            continue
        if name.endswith(_CAUSAL):
            yield (
                f"config.json names {name} without is_decoder=true: imported as {imported_as}, "
                "with bidirectional attention as in transformers; the outputs of a model trained "
                "with causal attention will differ"
            )
        else:
            yield (
                f"config.json names {name}, a class unknown to bertjax: imported as "
                f"{imported_as} by the names of its arrays; compare the outputs of both"
            )


def _of_tokenizer(released: HFModel, tokenizer: Tokenizer) -> Iterator[str]:
    if isinstance(tokenizer, SentencePieceTokenizer):
        yield (
            "the tokenizer is a SentencePiece model without a tokenizer.json: bertjax applies it "
            "to the text, while transformers first replaces `` and '' by \" and normalises case "
            "and accents by do_lower_case and keep_accents; for the same ids write a "
            "tokenizer.json with save_pretrained of its AutoTokenizer"
        )
    known = KNOWN_SPECIALS | set(architectures.attribute(released.architecture, "SPECIALS"))
    pieces = tokenizer.ids_to_pieces(tokenizer.special_ids)
    added = [piece for piece in pieces if piece not in known]
    if added:
        yield (
            f"the tokenizer has additional special tokens ({', '.join(added[:_MAX_TOKENS])}"
            f"{', ...' if added[_MAX_TOKENS:] else ''}): transformers recognises them in text, "
            "bertjax reads them as plain text; set special=false in added_tokens of tokenizer.json "
            "to have them recognised"
        )


def _of_task(released: HFModel, head: str, task: str) -> Iterator[str]:
    named = released.config.get("finetuning_task")
    if task and named and task != named:
        yield f"config.json has finetuning_task={named!r}: imported as {task}, the value of --task"
    if head == "squad" and not task and not named:
        yield (
            "config.json does not name the task: imported as squad1, in which every question has "
            "an answer; specify --task squad2 for a model of SQuAD 2.0"
        )
    regression = released.config.get("problem_type") == "regression"
    if (task or named) == "stsb" and not regression:
        yield (
            "config.json has no problem_type=regression: bertjax predict prints the raw output of "
            "stsb, while the pipeline of transformers applies a sigmoid"
        )
