"""Special tokens: their roles and spellings in vocabularies; character offsets of tokens.

Special tokens are control tokens, added to sequences by id; user text that spells one is text. The
offsets of a token exclude the spaces around it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def trim_spaces(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Takes the white space off both ends of each (start, end).

    Tokens that mark the beginning of a word by the space before it cover that space; answers and
    names in a text do not include it. A token of nothing but spaces covers nothing, at its end.
    """
    trimmed = []
    for start, end in spans:
        covered = text[start:end]
        trimmed.append((end - len(covered.lstrip()), start + len(covered.rstrip())))
    return [(start, max(start, end)) for start, end in trimmed]


SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
"""What serves as what, the more specific spelling first: XLNet has both <cls> and <s>."""

END_OF_TEXT = "<|endoftext|>"
"""GPT-2's only special token."""

WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BYTE_LEVEL_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SENTENCEPIECE_SPECIALS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")

KNOWN_SPECIALS = frozenset(sum(SPELLINGS.values(), (END_OF_TEXT,)))


def end_of_text(tokenizer: Any) -> int | None:
    """The token between documents, which ends one and begins the next; None if there is none."""
    spelled = dict(zip(tokenizer.pieces(tokenizer.special_ids), tokenizer.special_ids, strict=True))
    return spelled.get(END_OF_TEXT, tokenizer.sep_id)


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """The ids that mean something other than text.

    Attributes:
      pad_id: fills up short sequences. A vocabulary without a padding token lends another one
        (GPT-2 its end of text): padding is hidden by the attention mask, so any id serves.
      unk_id: stands for what the vocabulary cannot spell.
      cls_id: opens a sequence.
      sep_id: ends a segment; T5's and RoBERTa's `</s>` is one.
      mask_id: replaces what a masked language model is to predict.
      pieces: the spelling of every special id, in the order of ids.
    """

    pad_id: int
    unk_id: int | None
    cls_id: int | None
    sep_id: int | None
    mask_id: int | None
    pieces: Mapping[int, str]

    @classmethod
    def from_spellings(cls, ids: Mapping[str, int]) -> "SpecialTokens":
        """Finds the role of each special token by how it is spelled."""

        def find(role: str) -> int | None:
            return next((ids[spelling] for spelling in SPELLINGS[role] if spelling in ids), None)

        stand_ins = (find("pad"), ids.get(END_OF_TEXT), find("sep"), find("unk"), 0)
        return cls(
            pad_id=next(identity for identity in stand_ins if identity is not None),
            unk_id=find("unk"),
            cls_id=find("cls"),
            sep_id=find("sep"),
            mask_id=find("mask"),
            pieces=dict(sorted((identity, spelling) for spelling, identity in ids.items())),
        )

    def decode_around(
        self, ids: Sequence[int], decode: Callable[[list[int]], str], glue: str
    ) -> str:
        """Decodes the stretches between special tokens, which are spelled out.

        Args:
          ids: tokens of the vocabulary.
          decode: makes text of a stretch without special tokens.
          glue: what stands between stretches and special tokens.
        """
        parts = []
        for special, stretch in itertools.groupby(ids, self.pieces.__contains__):
            if special:
                parts += [self.pieces[identity] for identity in stretch]
            else:
                parts.append(decode(list(stretch)))
        return glue.join(parts)
