"""Where special tokens stand in a sequence, as the `post_processor` of a `tokenizer.json`."""

from typing import Any

from bertjax.data.tokenizer_definitions import Definition

_SINGLE, _PAIR = ("A",), ("A", "B")


def template(tokenizer: Any, *, cls_last: bool = False) -> Definition | None:
    """[CLS] A [SEP] and [CLS] A [SEP] B [SEP]; or A [SEP] [CLS] and A [SEP] B [SEP] [CLS].

    Args:
      tokenizer: A `Tokenizer`; without [CLS] and [SEP] there is no template.
      cls_last: Whether [CLS] ends a sequence; it is segment 2 then.
    """
    if tokenizer.cls_id is None or tokenizer.sep_id is None:
        return None
    cls, sep = tokenizer.pieces([tokenizer.cls_id, tokenizer.sep_id])
    ids = {cls: tokenizer.cls_id, sep: tokenizer.sep_id}

    def special(name: str, segment: int) -> Definition:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def sequence(names: tuple[str, ...]) -> list[Definition]:
        parts = [] if cls_last else [special(cls, 0)]
        for segment, name in enumerate(names):
            if segment:
                parts += [special(sep, segment)] * (tokenizer.pair_separators - 1)
            parts += [{"Sequence": {"id": name, "type_id": segment}}, special(sep, segment)]
        return [*parts, special(cls, 2)] if cls_last else parts

    return {
        "type": "TemplateProcessing",
        "single": sequence(_SINGLE),
        "pair": sequence(_PAIR),
        "special_tokens": {
            name: {"id": name, "ids": [identity], "tokens": [name]}
            for name, identity in ids.items()
        },
    }
