"""K-BERT's sentence trees: triples injected into texts (Liu et al. 2020, sections 3.2 and 3.3).

Every entity mentioned in a text is looked up in a graph of triples (K-Query), and the predicate and
object of its triples are inserted after it as branches of a tree (K-Inject). The distance of a
token from the root along its branch is its *soft* position, the model's `position_ids`; its index
in the flattened sequence is its hard position. A branch is visible only to itself and its entity
(the visible matrix).

The visible matrix has L x L entries per example, so the host sends two integers per token and
`layers/masks.py` builds the matrix on the device: `branch_ids` (0 for the text itself, the trunk)
and `entity_ids` (0 for tokens of no entity; a branch has the id of its entity).
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.interfaces import Tokenizer
from bertjax.tasks.sequences import Pairs, truncate_longer

Graph = Mapping[str, tuple[tuple[str, str], ...]]
"""The (predicate, object) pairs of each subject, in file order."""

MIN_NAME_LENGTH = 2
"""Minimum length of a subject in characters: single Chinese characters match common words."""

_UNSPACED = r"\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WITHIN_A_WORD = re.compile(rf"(?<=[^\W{_UNSPACED}])(?=[^\W{_UNSPACED}])")
"""Matches between two letters of a script with spaces, where no entity name begins or ends."""


class Tree(NamedTuple):
    """A flattened sentence tree: the tokens of a text and of its branches.

    Attributes:
      ids: Token ids; a branch follows the last token of its entity.
      positions: Soft positions, counted from 0 along the trunk and onward along each branch.
      branches: 0 for the trunk, else the number of the branch, from 1.
      entities: 0 for tokens of no entity, else the number of the entity, from 1.
    """

    ids: list[int]
    positions: list[int]
    branches: list[int]
    entities: list[int]


def read(path: str | pathlib.Path) -> Graph:
    """Reads a `.spo` file: one triple per line, subject, predicate and object separated by tabs.

    Raises:
      UserError: the file is missing, or a line does not have three fields.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise UserError(f"no knowledge graph at {path}: pass a .spo file, or '' for none")
    graph: dict[str, list[tuple[str, str]]] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) != 3 or not all(fields):
                raise UserError(
                    f"{path} line {number}: got {len(fields)} fields, expected subject, predicate "
                    "and object separated by tabs; fix or remove the line"
                )
            graph.setdefault(fields[0], []).append((fields[1], fields[2]))
    return {subject: tuple(pairs) for subject, pairs in graph.items()}


def find_names(text: str, graph: Graph, max_length: int) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of the mentions of subjects in a text: leftmost, longest first.

    The published code looks up the words of a Chinese word segmenter instead.

    Args:
      text: The text.
      graph: The triples.
      max_length: Length of the longest subject in characters.
    """
    inside = {match.start() for match in _WITHIN_A_WORD.finditer(text)}
    begin = 0
    while begin < len(text):
        ends = range(min(begin + max_length, len(text)), begin + MIN_NAME_LENGTH - 1, -1)
        free = begin not in inside
        found = (end for end in ends if free and end not in inside and text[begin:end] in graph)
        end = next(found, None)
        if end is not None:
            yield begin, end
        begin = begin + 1 if end is None else end


def sentence_tree(
    ids: Sequence[int],
    entities: Sequence[tuple[int, int]],
    branches: Sequence[Sequence[Sequence[int]]],
    budget: int,
) -> Tree:
    """Builds the sentence tree of a text, with branches in text order while they fit.

    Args:
      ids: The token ids of the text.
      entities: (first token, token after the last) of each entity, in order, none overlapping.
      branches: The token ids of each branch of each entity.
      budget: Maximum number of tokens of all branches. (The published code truncates the text
        instead of the branches.)
    """
    tree, numbers = Tree([], [], [], []), iter(range(1, 1 + sum(map(len, branches))))

    def append(tokens, position, branch, entity):
        for columns, values in zip(
            tree,
            (tokens, range(position, position + len(tokens)), branch, entity),
            strict=True,
        ):
            columns.extend([values] * len(tokens) if isinstance(values, int) else values)

    at = 0
    for entity, ((begin, end), own) in enumerate(zip(entities, branches, strict=True), start=1):
        fitting = []
        for tokens in own:
            if len(tokens) <= budget:
                fitting.append(tokens)
                budget -= len(tokens)
        append(ids[at:begin], at, 0, 0)
        append(ids[begin:end], begin, 0, entity if fitting else 0)
        for tokens in fitting:
            append(tokens, end, next(numbers), entity)
        at = end
    append(ids[at:], at, 0, 0)
    return tree


class Injector:
    """Encodes texts as sentence trees.

    Args:
      graph: The triples.
      tokenizer: An `interfaces.Tokenizer` with `encode_with_offsets`, [CLS] and [SEP].
      triples_per_entity: Maximum number of triples inserted per mention of a subject.

    Raises:
      UserError: `triples_per_entity` is below 1.
    """

    def __init__(self, graph: Graph, tokenizer: Tokenizer, triples_per_entity: int):
        if triples_per_entity < 1:
            raise UserError(f"triples_per_entity: got {triples_per_entity}, expected >= 1")
        self._graph, self._tokenizer, self._max_triples = graph, tokenizer, triples_per_entity
        self._max_length = max(map(len, graph), default=0)
        self._branches: dict[str, list[list[int]]] = {}

    def tree(self, text: str, size: int, budget: int) -> Tree:
        """Returns the tree of the first `size` tokens of a text plus at most `budget` others."""
        ids, spans = self._tokenizer.encode_with_offsets(text)
        begins = {begin: number for number, (begin, _) in reversed([*enumerate(spans)])}
        ends = {end: number + 1 for number, (_, end) in enumerate(spans)}
        entities, branches = [], []
        for begin, end in find_names(text, self._graph, self._max_length):
            if begin in begins and ends.get(end, size + 1) <= size:
                entities.append((begins[begin], ends[end]))
                branches.append(self._branches_of(text[begin:end]))
        return sentence_tree(ids[:size], entities, branches, budget)

    def _branches_of(self, subject: str) -> list[list[int]]:
        if subject not in self._branches:
            pairs = self._graph[subject][: self._max_triples]
            texts = [f"{predicate} {object_}" for predicate, object_ in pairs]
            self._branches[subject] = self._tokenizer.encode_batch(texts)
        return self._branches[subject]


def encode(
    texts: Sequence[list[str]],
    tokenizer: Tokenizer,
    graph: Graph,
    max_seq_length: int,
    *,
    triples_per_entity: int,
) -> Pairs:
    """Encodes texts as `sequences.encode` does, with triples injected where the length allows.

    Args:
      texts: One or two lists of equal length.
      tokenizer: An `interfaces.Tokenizer` with `encode_with_offsets`, [CLS] and [SEP].
      graph: The triples.
      max_seq_length: Maximum length in tokens, triples and special tokens included.
      triples_per_entity: Maximum number of triples inserted per mention of a subject.

    Raises:
      UserError: the tokenizer has no [CLS] or [SEP], or one token of each text does not fit.
    """
    template = SequenceTemplate.from_tokenizer(tokenizer)
    budget = max_seq_length - template.num_special_tokens(len(texts))
    if tokenizer.cls_id is None or tokenizer.sep_id is None or budget < len(texts):
        raise UserError(
            f"max_seq_length={max_seq_length} leaves no room for {len(texts)} text(s), or the "
            "tokenizer has no [CLS] and [SEP]: raise max_seq_length, or use a tokenizer that has "
            "both"
        )
    injector = Injector(graph, tokenizer, triples_per_entity)
    sizes = [np.array([len(ids) for ids in tokenizer.encode_batch(column)]) for column in texts]
    kept = truncate_longer(*sizes, budget) if len(texts) == 2 else [np.minimum(sizes[0], budget)]
    cut = sum(kept) < sum(sizes)
    separators = [template.pair_separators, 1] if len(texts) == 2 else [1]
    columns: dict[str, list[int]] = {"position_ids": [], "branch_ids": [], "entity_ids": []}
    segments: list[list[list[int]]] = [[] for _ in texts]
    for row, words in enumerate(zip(*texts, strict=True)):
        row_sizes = [int(size[row]) for size in kept]
        trees = _trees(injector, words, row_sizes, budget - sum(row_sizes))
        for segment, tree in zip(segments, trees, strict=True):
            segment.append(tree.ids)
        for column, values in zip(columns.values(), _join(trees, separators), strict=True):
            column.extend(values)
    lengths = [np.array([len(ids) for ids in segment], np.int64) for segment in segments]
    frame = template.frame(lengths)
    for index, segment in enumerate(segments):
        frame.write(index, segment)
    return Pairs.from_frame(
        frame,
        template,
        columns={name: np.array(column, np.int32) for name, column in columns.items()},
        truncated=cut,
    )


def _trees(injector: Injector, texts: Sequence[str], sizes: list[int], budget: int) -> list[Tree]:
    trees = []
    for text, size in zip(texts, sizes, strict=True):
        trees.append(injector.tree(text, size, budget))
        budget -= len(trees[-1].ids) - size
    return trees


def _join(trees: list[Tree], separators: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Returns positions, branches and entities of the sequence of some trees, with [CLS] first.

    Args:
      trees: One or two.
      separators: Number of [SEP] after each; they are part of the trunk.
    """
    positions, branches, entities = [0], [0], [0]
    start = 1
    for tree, count in zip(trees, separators, strict=True):
        last_branch, last_entity = max(branches), max(entities)
        end = start + sum(branch == 0 for branch in tree.branches)
        positions += [*(start + position for position in tree.positions), *range(end, end + count)]
        branches += [b and b + last_branch for b in tree.branches] + [0] * count
        entities += [e and e + last_entity for e in tree.entities] + [0] * count
        start = end + count
    return positions, branches, entities
