"""K-BERT's sentence trees: triples injected into texts (Liu et al. 2020, sections 3.2 and 3.3).

A graph of triples is asked for every entity that a text names (K-Query), and what it says of one is
put behind it as branches of a tree (K-Inject): predicate and object. Read along the branches, a
token has a *soft* position, which is the model's `position_ids`; laid out, it has a place in the
sequence. A branch is visible to itself and to its entity alone (the visible matrix). That matrix
has as many numbers as two tokens have pairs, so what travels are two numbers a token, from which
`layers/masks.py` makes it on the device: `branch_ids` (0 for the text itself, the trunk) and
`entity_ids` (0 for tokens of no entity; a branch has its entity's).
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.sequences import Pairs, truncated

Graph = Mapping[str, tuple[tuple[str, str], ...]]
"""What a graph says of each subject: (predicate, object), in the file's order."""

SHORTEST_NAME = 2
"""Characters of the shortest subject: single Chinese characters are words of every kind."""

_UNSPACED = r"\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WITHIN_A_WORD = re.compile(rf"(?<=[^\W{_UNSPACED}])(?=[^\W{_UNSPACED}])")
"""Between two letters of a script that parts words by spaces, no name begins or ends."""


class Tree(NamedTuple):
    """The tokens of a text and its branches, laid out.

    Attributes:
      ids: Each branch stands behind the last token of its entity.
      positions: Soft positions, counted from 0 along the trunk and on along each branch.
      branches: 0 for the trunk, else the number of the branch, from 1.
      entities: 0 for tokens of no entity, else its number, from 1.
    """

    ids: list[int]
    positions: list[int]
    branches: list[int]
    entities: list[int]


def read(path: str | pathlib.Path) -> Graph:
    """Reads a `.spo` file: subject, predicate and object a line, between tabs.

    Raises:
      UserError: there is no such file, or a line is not of this kind.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise UserError(f"no graph at {path}: give a .spo file, or '' to go without one")
    graph: dict[str, list[tuple[str, str]]] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) != 3 or not all(fields):
                raise UserError(
                    f"{path} line {number}: {len(fields)} fields, expected subject, predicate and "
                    "object separated by tabs; fix or remove the line"
                )
            graph.setdefault(fields[0], []).append((fields[1], fields[2]))
    return {subject: tuple(said) for subject, said in graph.items()}


def find_names(text: str, graph: Graph, max_length: int) -> Iterator[tuple[int, int]]:
    """Where a text names subjects of a graph: (begin, end), the longest from left to right.

    The published code asks for every word that a segmenter finds instead.
    """
    inside = {match.start() for match in _WITHIN_A_WORD.finditer(text)}
    begin = 0
    while begin < len(text):
        ends = range(min(begin + max_length, len(text)), begin + SHORTEST_NAME - 1, -1)
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
    room: int,
) -> Tree:
    """Lays out a text with its branches as long as they fit, in the text's order.

    Args:
      ids: The text.
      entities: (first token, token after the last) of each, in order, none overlapping.
      branches: The tokens of each branch of each entity.
      room: Tokens that all branches may have together. (The published code lets them push the end
        of the text out.)
    """
    tree, numbers = Tree([], [], [], []), iter(range(1, 1 + sum(map(len, branches))))

    def grow(tokens, position, branch, entity):
        for columns, values in zip(
            tree,
            (tokens, range(position, position + len(tokens)), branch, entity),
            strict=True,
        ):
            columns.extend([values] * len(tokens) if isinstance(values, int) else values)

    at = 0
    for entity, ((begin, end), said) in enumerate(zip(entities, branches, strict=True), start=1):
        fitting = []
        for tokens in said:
            if len(tokens) <= room:
                fitting.append(tokens)
                room -= len(tokens)
        grow(ids[at:begin], at, 0, 0)
        grow(ids[begin:end], begin, 0, entity if fitting else 0)
        for tokens in fitting:
            grow(tokens, end, next(numbers), entity)
        at = end
    grow(ids[at:], at, 0, 0)
    return tree


class Injector:
    """Encodes texts as sentence trees.

    Args:
      graph: What is known.
      tokenizer: An `interfaces.Tokenizer` with `encode_with_offsets`, [CLS] and [SEP].
      triples_per_entity: How much of it is said of each mention of a subject, at most.
    """

    def __init__(self, graph: Graph, tokenizer, triples_per_entity: int):
        if triples_per_entity < 1:
            raise UserError(f"triples_per_entity={triples_per_entity}: expected 1 or more")
        self._graph, self._tokenizer, self._most = graph, tokenizer, triples_per_entity
        self._max_length = max(map(len, graph), default=0)
        self._branches: dict[str, list[list[int]]] = {}

    def tree(self, text: str, size: int, room: int) -> Tree:
        """The tree of the first `size` tokens of a text, with branches of `room` tokens at most."""
        ids, spans = self._tokenizer.encode_with_offsets(text)
        begins = {begin: number for number, (begin, _) in reversed([*enumerate(spans)])}
        ends = {end: number + 1 for number, (_, end) in enumerate(spans)}
        entities, branches = [], []
        for begin, end in find_names(text, self._graph, self._max_length):
            if begin in begins and ends.get(end, size + 1) <= size:
                entities.append((begins[begin], ends[end]))
                branches.append(self._said_of(text[begin:end]))
        return sentence_tree(ids[:size], entities, branches, room)

    def _said_of(self, subject: str) -> list[list[int]]:
        if subject not in self._branches:
            said = self._graph[subject][: self._most]
            texts = [f"{predicate} {object_}" for predicate, object_ in said]
            self._branches[subject] = self._tokenizer.encode_batch(texts)
        return self._branches[subject]


def encode(
    texts: Sequence[list[str]],
    tokenizer,
    graph: Graph,
    max_seq_length: int,
    *,
    triples_per_entity: int,
) -> Pairs:
    """Like `pairs.encode`, with knowledge where the texts leave room for it.

    Raises:
      UserError: the tokenizer has no [CLS] or [SEP], or the texts have no room.
    """
    ends = [tokenizer.pair_separators, 1] if len(texts) == 2 else [1]
    budget = max_seq_length - 1 - sum(ends)
    if tokenizer.cls_id is None or tokenizer.sep_id is None or budget < len(texts):
        raise UserError(
            f"max_seq_length={max_seq_length} and a tokenizer with [CLS] and [SEP] must leave room "
            f"for {len(texts)} text(s): raise it, or use a tokenizer that has both"
        )
    injector = Injector(graph, tokenizer, triples_per_entity)
    sizes = [np.array([len(ids) for ids in tokenizer.encode_batch(column)]) for column in texts]
    kept = truncated(*sizes, budget) if len(texts) == 2 else [np.minimum(sizes[0], budget)]
    cut = sum(kept) < sum(sizes)
    columns: list[list[int]] = [[], [], [], []]
    lengths, first_lengths = [], []
    for row, words in enumerate(zip(*texts, strict=True)):
        wanted = [int(size[row]) for size in kept]
        trees = _trees(injector, words, wanted, budget - sum(wanted))
        laid = _sequence(trees, ends, tokenizer.cls_id, tokenizer.sep_id)
        for column, values in zip(columns, laid, strict=True):
            column.extend(values)
        lengths.append(len(laid.ids))
        first_lengths.append(len(trees[0].ids) + 2)  # one separator of two is the first text's
    ids, *others = (np.array(column, np.int32) for column in columns)
    sizes = np.array(lengths, np.int64)
    return Pairs(
        tokens=ids,
        starts=np.cumsum(sizes) - sizes,
        lengths=sizes,
        first_lengths=np.array(first_lengths, np.int64),
        pad_id=tokenizer.pad_id,
        columns=dict(zip(("position_ids", "branch_ids", "entity_ids"), others, strict=True)),
        truncated=cut,
    )


def _trees(injector: Injector, texts: Sequence[str], sizes: list[int], room: int) -> list[Tree]:
    trees = []
    for text, size in zip(texts, sizes, strict=True):
        trees.append(injector.tree(text, size, room))
        room -= len(trees[-1].ids) - size
    return trees


def _sequence(trees: list[Tree], ends: list[int], cls_id: int, sep_id: int) -> Tree:
    """[CLS] tree [SEP], or [CLS] tree [SEP] tree [SEP], as one tree; RoBERTa has two in between."""
    whole = Tree([cls_id], [0], [0], [0])
    position = 1
    for tree, count in zip(trees, ends, strict=True):
        before = max(whole.branches), max(whole.entities)
        trunk = sum(branch == 0 for branch in tree.branches)
        separators = range(position + trunk, position + trunk + count)
        whole.ids.extend([*tree.ids] + [sep_id] * count)
        whole.positions.extend([*(position + p for p in tree.positions), *separators])
        whole.branches.extend([b and b + before[0] for b in tree.branches] + [0] * count)
        whole.entities.extend([e and e + before[1] for e in tree.entities] + [0] * count)
        position += trunk + count
    return whole
