"""K-BERT's sentence trees: the paper's example by hand, entities in texts, truncation."""

import types

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks import knowledge, sequences

WORDS = (
    "[PAD] [CLS] [SEP] Tim Cook is currently visiting Beijing now CEO Apple capital China is_a City"
)
IDS = {word: number for number, word in enumerate(WORDS.split())}
FIGURE = {
    "Tim Cook": (("CEO", "Apple"),),
    "Beijing": (("capital", "China"), ("is_a", "City"), ("never", "said")),
}


def offsets(text):
    spans, begin = [], 0
    for word in text.split(" "):
        spans.append((begin, begin + len(word)))
        begin += len(word) + 1
    return [IDS[word] for word in text.split(" ")], spans


TOKENIZER = types.SimpleNamespace(
    cls_id=IDS["[CLS]"],
    sep_id=IDS["[SEP]"],
    pad_id=0,
    pair_separators=1,
    encode_batch=lambda texts: [offsets(text)[0] for text in texts],
    encode_with_offsets=offsets,
)


def rows(texts, length, graph=FIGURE, each=2, tokenizer=TOKENIZER):
    encoded = knowledge.encode(texts, tokenizer, graph, length, triples_per_entity=each)
    return encoded.rows(np.arange(len(texts[0])), length)


def test_the_example_of_figure_2():
    """Tokens, their indices in the sequence and their soft positions."""
    batch = rows((["Tim Cook is visiting Beijing now"],), 16)
    laid = "[CLS] Tim Cook CEO Apple is visiting Beijing capital China is_a City now [SEP]"
    assert batch["input_ids"][0].tolist() == [*offsets(laid)[0], 0, 0]
    assert batch["position_ids"][0, :13].tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 6, 7, 6]
    assert batch["branch_ids"][0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 2, 2, 3, 3, 0, 0, 0, 0]
    assert batch["entity_ids"][0].tolist() == [0, 1, 1, 1, 1, 0, 0, 2, 2, 2, 2, 2, 0, 0, 0, 0]
    assert batch["attention_mask"][0].tolist() == [True] * 14 + [False] * 2


def test_without_an_entity_it_is_the_plain_sequence():
    texts = (["is now", "currently visiting now"], ["now", "is"])
    plain = sequences.encode(texts, TOKENIZER, 9).rows(np.arange(2), 9)
    batch = rows(texts, 9)
    for name, values in plain.items():
        np.testing.assert_array_equal(batch[name], values)
    assert not batch["branch_ids"].any()
    attention_mask = batch["attention_mask"]
    np.testing.assert_array_equal(batch["position_ids"], np.where(attention_mask, np.arange(9), 0))


def test_trees_of_two_texts_do_not_share_numbers():
    batch = rows((["Beijing is"], ["Tim Cook"]), 14)
    assert batch["branch_ids"][0].tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 0, 0, 3, 3, 0, 0]
    assert batch["entity_ids"][0].tolist() == [0, 1, 1, 1, 1, 1, 0, 0, 2, 2, 2, 2, 0, 0]
    assert batch["segment_ids"][0].tolist() == [0] * 8 + [1] * 5 + [0]
    assert batch["position_ids"][0].tolist() == [0, 1, 2, 3, 2, 3, 2, 3, 4, 5, 6, 7, 6, 0]


def test_two_separators_between_texts():
    tokenizer = types.SimpleNamespace(**vars(TOKENIZER) | {"pair_separators": 2})
    texts = (["is now"], ["now"])
    plain = sequences.encode(texts, tokenizer, 9).rows(np.arange(1), 9)
    batch = rows(texts, 9, tokenizer=tokenizer)
    for name, values in plain.items():
        np.testing.assert_array_equal(batch[name], values)
    batch = rows((["Tim Cook"], ["is"]), 10, tokenizer=tokenizer)
    assert batch["position_ids"][0].tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 0]
    assert batch["branch_ids"][0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]


def test_branches_are_dropped_before_the_text_is_truncated():
    """12 positions: 8 for the text, 4 for two of the three branches of two tokens."""
    batch = rows((["Tim Cook is visiting Beijing now"],), 12)
    assert batch["branch_ids"].max() == 2
    batch = rows((["Tim Cook is visiting Beijing now"],), 9)
    assert not batch["branch_ids"].any()
    assert not batch["entity_ids"].any()
    assert batch["attention_mask"].sum() == 8


def test_a_truncated_entity_has_no_branches():
    batch = rows((["is now currently Tim Cook"],), 6)
    assert batch["input_ids"][0].tolist() == offsets("[CLS] is now currently Tim [SEP]")[0]
    assert not batch["entity_ids"].any()


def test_the_number_of_triples_is_limited():
    assert rows((["Beijing"],), 12, each=1)["branch_ids"].max() == 1
    with pytest.raises(UserError, match="triples_per_entity: got 0, expected >= 1"):
        rows((["Beijing"],), 12, each=0)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("我爱北京大学的北京", [(2, 6), (7, 9)]),
        ("cat category cats cat", [(0, 3), (18, 21)]),
        ("a new new york yorker", [(6, 14)]),
        ("北cat京", [(1, 4)]),
        ("", []),
    ],
)
def test_entities_are_found_by_longest_match_from_left_to_right(text, names):
    graph = dict.fromkeys(["北京", "北京大学", "大学", "cat", "new york", "北"], (("is", "a"),))
    assert list(knowledge.find_names(text, graph, 8)) == names


def test_a_graph_is_read_in_order(tmp_path):
    path = tmp_path / "small.spo"
    path.write_text("a\tp\tx\nb\tq\ty\r\na\tr\tz\n", encoding="utf-8")
    assert knowledge.read(path) == {"a": (("p", "x"), ("r", "z")), "b": (("q", "y"),)}
    path.write_text("a\tp\tx\nb\tq\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"small.spo line 2: got 2 fields, expected subject"):
        knowledge.read(path)
    with pytest.raises(UserError, match="no knowledge graph at"):
        knowledge.read(tmp_path / "absent.spo")


def test_a_too_short_sequence_is_one_line():
    with pytest.raises(UserError, match=r"leaves no room for 1 text"):
        rows((["now"],), 2)


def test_hownet(shared_data):
    graph = knowledge.read(shared_data / "kbert" / "kgs" / "HowNet.spo")
    assert sum(map(len, graph.values())) == 52576
    max_length = max(map(len, graph))
    assert list(knowledge.find_names("每个自己都会有自己的地下室和有意识", graph, max_length)) == [
        (10, 13),
        (14, 17),
    ]
