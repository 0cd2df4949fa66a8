"""Special tokens: roles and spellings in vocabularies; character offsets of tokens.

Special tokens are control tokens, added to sequences by id; a literal special token in user text is
text.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from bertjax.interfaces import Tokenizer


def trim_spaces(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Strips white space from both ends of each (start, end) span.

    Pieces that mark the beginning of a word by the preceding space include that space in their
    span, which answers and entities in a text do not. A span of white space becomes empty, at its
    end.
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
"""Spellings of each role, the more specific first: XLNet has both <cls> and <s>."""

END_OF_TEXT = "<|endoftext|>"
"""GPT-2's only special token."""

WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BYTE_LEVEL_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SENTENCEPIECE_SPECIALS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")

KNOWN_SPECIALS = frozenset(sum(SPELLINGS.values(), (END_OF_TEXT,)))


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """Returns the id of the token between documents: GPT-2's end of text, else [SEP], else None."""
    spelled = dict(
        zip(tokenizer.ids_to_pieces(tokenizer.special_ids), tokenizer.special_ids, strict=True)
    )
    return spelled.get(END_OF_TEXT, tokenizer.sep_id)


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """Special tokens of a vocabulary, by role.

    Attributes:
      pad_id: Padding. Without a padding token another id is used (for GPT-2, its end of text):
        padding is excluded by the attention mask, so that any id works.
      unk_id: Replaces text that the vocabulary cannot spell; None if there is none.
      cls_id: Begins a sequence; None if there is none.
      sep_id: Ends a segment, as T5's and RoBERTa's `</s>` does; None if there is none.
      mask_id: Replaces masked tokens; None if there is none.
      pieces: The piece of every special id, in the order of ids.
    """

    pad_id: int
    unk_id: int | None
    cls_id: int | None
    sep_id: int | None
    mask_id: int | None
    pieces: Mapping[int, str]

    @classmethod
    def from_spellings(cls, ids: Mapping[str, int]) -> "SpecialTokens":
        """Assigns roles to special tokens by their spellings."""

        def find(role: str) -> int | None:
            return next((ids[spelling] for spelling in SPELLINGS[role] if spelling in ids), None)

        padding = (find("pad"), ids.get(END_OF_TEXT), find("sep"), find("unk"), 0)
        return cls(
            pad_id=next(identity for identity in padding if identity is not None),
            unk_id=find("unk"),
            cls_id=find("cls"),
            sep_id=find("sep"),
            mask_id=find("mask"),
            pieces=dict(sorted((identity, spelling) for spelling, identity in ids.items())),
        )

    def decode_with_specials(
        self, ids: Sequence[int], decode: Callable[[list[int]], str], glue: str
    ) -> str:
        """Decodes ids to text, in which special tokens are spelled out.

        Args:
          ids: Tokens of the vocabulary.
          decode: Decodes a run of ids without special tokens.
          glue: Separator between decoded runs and special tokens.
        """
        parts = []
        for is_special, run in itertools.groupby(ids, self.pieces.__contains__):
            if is_special:
                parts += [self.pieces[identity] for identity in run]
            else:
                parts.append(decode(list(run)))
        return glue.join(parts)
