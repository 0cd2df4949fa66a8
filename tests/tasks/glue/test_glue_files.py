"""Reading GLUE's released files: all nine tasks, and errors."""

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.tasks.glue import files as glue_files
from bertjax.tasks.glue.table import GLUE, glue_task

MNLI_HEAD = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse"
    "\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2"
)
MNLI_ROW = "0\t3\t3c\tfiction\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tA man.\tNo man."
STSB_HEAD = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
STSB_ROW = "7\tnews\tMSR\t2012\t0004\tnone\tnone\tA plane.\tAn air plane."
MRPC_HEAD = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"

OFFICIAL = {
    "CoLA/train.tsv": "gj04\t1\t\tIt is.\ngj04\t0\t*\tIs it is.\n",
    "CoLA/dev.tsv": "gj04\t0\t*\tThey was.\n",
    "CoLA/test.tsv": "index\tsentence\n0\tBill whistled.\n1\tThe car.\n",
    "SST-2/train.tsv": "sentence\tlabel\ngood \t1\nbad \t0\n",
    "SST-2/dev.tsv": "sentence\tlabel\nfine \t1\n",
    "SST-2/test.tsv": "index\tsentence\n0\tso so\n",
    "MRPC/train.tsv": f'{MRPC_HEAD}\n1\t11\t12\t" He said .\tHe " said\n0\t13\t14\ta\tb\n',
    "MRPC/dev.tsv": f"{MRPC_HEAD}\n0\t21\t22\tc\td\n",
    "MRPC/test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t31\t32\te\tf\n",
    "STS-B/train.tsv": f"{STSB_HEAD}\tscore\n{STSB_ROW}\t3.800\n",
    "STS-B/dev.tsv": f"{STSB_HEAD}\tscore\n{STSB_ROW}\t5.000\n",
    "STS-B/test.tsv": f"{STSB_HEAD}\n{STSB_ROW}\n",
    "QQP/train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "133273\t213221\t213222\tHow?\tWhy?\t1\n402555\t5\t6\tWho?\tWhen?\t0\n",
    "QQP/dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n9\t1\t2\tA?\tB?\t0\n",
    "QQP/test.tsv": "id\tquestion1\tquestion2\n4\tC?\tD?\n",
    "MNLI/train.tsv": f"{MNLI_HEAD}\tlabel1\tgold_label\n{MNLI_ROW}\tneutral\tneutral\n",
    "MNLI/dev_matched.tsv": f"{MNLI_HEAD}\tlabel1\tlabel2\tgold_label\n"
    f"{MNLI_ROW}\tneutral\tentailment\tentailment\n",
    "MNLI/dev_mismatched.tsv": f"{MNLI_HEAD}\tlabel1\tgold_label\n"
    f"{MNLI_ROW}\tneutral\tcontradiction\n",
    "MNLI/test_matched.tsv": f"{MNLI_HEAD}\n{MNLI_ROW}\n",
    "MNLI/test_mismatched.tsv": f"{MNLI_HEAD}\n{MNLI_ROW}\n",
    "diagnostic/diagnostic.tsv": "index\tsentence1\tsentence2\n0\tThe cat.\tThe dog.\n",
    "QNLI/train.tsv": "index\tquestion\tsentence\tlabel\n0\tWhat?\tThis.\tnot_entailment\n",
    "QNLI/dev.tsv": "index\tquestion\tsentence\tlabel\n0\tWhat?\tThis.\tentailment\n",
    "QNLI/test.tsv": "index\tquestion\tsentence\n5\tWhat?\tThis.\n",
    "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tx\ty\tentailment\n",
    "RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tx\ty\tnot_entailment\n",
    "RTE/test.tsv": "index\tsentence1\tsentence2\n0\tx\ty\n",
    "WNLI/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tx\ty\t1\n",
    "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tx\ty\t0\n",
    "WNLI/test.tsv": "index\tsentence1\tsentence2\n0\tx\ty\n",
}

TRAIN_LABELS = {
    "cola": [1, 0],
    "sst2": [1, 0],
    "mrpc": [1, 0],
    "stsb": [np.float32(3.8)],
    "qqp": [1, 0],
    "mnli": [1],
    "qnli": [1],
    "rte": [0],
    "wnli": [1],
}


@pytest.fixture
def official(tmp_path):
    """A folder with every file of the release, a few lines each."""
    for name, text in OFFICIAL.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("task", GLUE, ids=lambda task: task.name)
def test_every_task_reads_every_split(official, task):
    splits = glue_files.read(str(official), task)
    assert list(splits) == [split.name for split in task.splits]
    assert splits["train"].labels.tolist() == TRAIN_LABELS[task.name]
    for split in task.splits:
        assert (splits[split.name].labels is not None) == split.labelled
        assert len(splits[split.name].texts) == len(split.texts)
        assert splits[split.name].left_out == ()


def test_texts_labels_and_indices_come_from_the_right_columns(official):
    mnli = glue_files.read(str(official), glue_task("mnli"))
    assert mnli["train"].texts == (["A man."], ["No man."])
    assert mnli["dev"].labels.tolist() == [0]
    assert mnli["dev_mismatched"].labels.tolist() == [2]
    assert mnli["diagnostic"].texts == (["The cat."], ["The dog."])
    qqp = glue_files.read(str(official), glue_task("qqp"))
    assert qqp["train"].texts == (["How?", "Who?"], ["Why?", "When?"])
    assert qqp["train"].indices == ["133273", "402555"]
    cola = glue_files.read(str(official), glue_task("cola"))
    assert cola["train"].texts == (["It is.", "Is it is."],)
    assert cola["dev"].indices == ["0"]
    assert cola["test"].texts == (["Bill whistled.", "The car."],)
    stsb = glue_files.read(str(official), glue_task("stsb"))
    assert stsb["test"].indices == ["7"]


def test_quotes_are_literal(official):
    mrpc = glue_files.read(str(official), glue_task("mrpc"))
    assert mrpc["train"].texts == (['" He said .', "a"], ['He " said', "b"])


def test_byte_order_marks_and_carriage_returns_are_ignored(official):
    plain = glue_files.read(str(official), glue_task("mrpc"))
    path = official / "MRPC" / "train.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    marked = glue_files.read(str(official), glue_task("mrpc"))
    assert marked["train"].texts == plain["train"].texts
    assert marked["train"].labels.tolist() == plain["train"].labels.tolist()


def test_only_a_newline_ends_a_line(official):
    path = official / "RTE" / "train.tsv"
    text = "index\tsentence1\tsentence2\tlabel\n0\tone\u2028two\x0b\x85\ty\tentailment\n"
    path.write_text(text, encoding="utf-8", newline="")
    rte = glue_files.read(str(official), glue_task("rte"))
    assert rte["train"].texts[0] == ["one\u2028two\x0b\x85"]


def test_columns_are_found_by_name_whatever_their_order(official):
    path = official / "RTE" / "dev.tsv"
    path.write_text("label\tsentence2\tindex\tsentence1\nentailment\tb\t9\ta\n")
    rte = glue_files.read(str(official), glue_task("rte"))
    assert rte["dev"].texts == (["a"], ["b"])
    assert rte["dev"].indices == ["9"]
    assert rte["dev"].labels.tolist() == [0]


def test_a_test_split_may_be_absent_or_have_labels(official):
    (official / "RTE" / "test.tsv").unlink()
    assert set(glue_files.read(str(official), glue_task("rte"))) == {"train", "dev"}
    (official / "RTE" / "test.tsv").write_text(OFFICIAL["RTE/dev.tsv"])
    assert glue_files.read(str(official), glue_task("rte"))["test"].labels.tolist() == [1]


def test_paraphrases_as_microsoft_released_them(official):
    for name in ("train", "dev", "test"):
        (official / "MRPC" / f"{name}.tsv").unlink()
    both = f"{MRPC_HEAD}\n1\t11\t12\ta\tb\n0\t21\t22\tc\td\n1\t31\t32\te\tf\n"
    (official / "MRPC" / "msr_paraphrase_train.txt").write_text("\ufeff" + both)
    (official / "MRPC" / "msr_paraphrase_test.txt").write_text(f"{MRPC_HEAD}\n1\t1\t2\tg\th\n")
    with pytest.raises(UserError, match=r"paraphrase_train.txt contains train and dev: add dev_"):
        glue_files.read(str(official), glue_task("mrpc"))
    (official / "MRPC" / "dev_ids.tsv").write_text("21\t22\n")
    mrpc = glue_files.read(str(official), glue_task("mrpc"))
    assert mrpc["train"].texts == (["a", "e"], ["b", "f"])
    assert mrpc["dev"].texts == (["c"], ["d"])
    assert mrpc["dev"].labels.tolist() == [0]
    assert mrpc["test"].labels.tolist() == [1]


def test_broken_lines_of_quora_are_left_out_and_counted(official):
    head, *rows = OFFICIAL["QQP/train.tsv"].splitlines()
    broken = ["7\t1\t2\tWhat is", "this?\tWhat?\t1"]
    path = official / "QQP" / "train.tsv"
    path.write_text("\n".join([head, *rows * 1000, *broken]))
    qqp = glue_files.read(str(official), glue_task("qqp"))
    assert len(qqp["train"]) == 2000
    assert qqp["train"].left_out == ("line 2002", "line 2003")
    path.write_text("\n".join([head, *rows, *broken]))
    with pytest.raises(UserError, match=r"QQP/train.tsv line 4: got 4 fields, expected 6"):
        glue_files.read(str(official), glue_task("qqp"))


def change(official, name, old, new):
    path = official / name
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize(
    ("task", "file", "old", "new", "message"),
    [
        ("rte", "RTE/dev.tsv", b"sentence2", b"sentence", r"RTE/dev.tsv line 1: no column 'sent"),
        ("rte", "RTE/dev.tsv", b"\tlabel", b"\tgold", r"no column 'label' among index, sentence1"),
        ("cola", "CoLA/test.tsv", b"index\tsentence\n", b"", r"line 1: no column 'sentence'"),
        (
            "rte",
            "RTE/dev.tsv",
            b"\ty\t",
            b"\t",
            r"dev.tsv line 2: got 3 fields, expected 4 separated",
        ),
        (
            "cola",
            "CoLA/train.tsv",
            b"\t*\t",
            b"\t*\ta\t",
            r"train.tsv line 2: got 5 fields, expected 4",
        ),
        ("rte", "RTE/dev.tsv", b"not_entailment", b"", r"dev.tsv line 2: label: got '', exp"),
        ("mrpc", "MRPC/dev.tsv", b"\n0\t", b"\n2\t", r"dev.tsv line 2: label: got '2', expected"),
        ("stsb", "STS-B/dev.tsv", b"5.000", b"5.001", r"line 2: score: got '5.001', expected a"),
        ("stsb", "STS-B/dev.tsv", b"5.000", b"high", r"line 2: score: got 'high', expected a nu"),
        ("stsb", "STS-B/dev.tsv", b"5.000", b"nan", r"line 2: score: got 'nan', expected a num"),
        ("rte", "RTE/dev.tsv", b"\n0\tx", b"\n0\t\xe9x", r"line 2: byte 34 \(0xe9\) is not UTF-8"),
        (
            "rte",
            "RTE/dev.tsv",
            OFFICIAL["RTE/dev.tsv"].encode(),
            b"",
            r"dev.tsv is empty: expected",
        ),
        ("sst2", "SST-2/dev.tsv", b"fine \t1\n", b"\r\n\n", r"SST-2/dev.tsv has no examples"),
    ],
)
def test_errors_name_file_and_line(official, task, file, old, new, message):
    change(official, file, old, new)
    with pytest.raises(UserError, match=message) as caught:
        glue_files.read(str(official), glue_task(task))
    assert "\n" not in str(caught.value)


def test_missing_files_are_named(official, tmp_path):
    (official / "RTE" / "dev.tsv").unlink()
    with pytest.raises(UserError, match=r"no dev.tsv in .*RTE: rte requires its dev"):
        glue_files.read(str(official), glue_task("rte"))
    for path in (official / "SST-2").iterdir():
        path.unlink()
    (official / "SST-2").rmdir()
    with pytest.raises(UserError, match=r"no SST-2/ in .*\(found CoLA, MRPC, STS-B, QQP, MNLI"):
        glue_files.read(str(official), glue_task("sst2"))
    with pytest.raises(UserError, match=r"no folder .*nowhere: --data expects the folder with"):
        glue_files.read(str(tmp_path / "nowhere"), glue_task("sst2"))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("cola", {"train": 8551, "dev": 1043, "test": 1063}),
        ("sst2", {"train": 67349, "dev": 872}),
        ("mrpc", {"train": 3668, "dev": 408, "test": 1725}),
        ("stsb", {"train": 5749, "dev": 1500, "test": 1379}),
        ("rte", {"train": 2490, "dev": 277, "test": 3000}),
    ],
)
def test_the_released_files_have_their_published_sizes(shared_data, name, sizes):
    splits = glue_files.read(str(shared_data / "glue"), glue_task(name))
    assert {split: len(examples) for split, examples in splits.items()} == sizes


def test_class_balance_of_the_released_files(shared_data):
    """Majority shares of the dev sets, as in the literature."""
    for name, label, share in [("mrpc", 1, 0.684), ("cola", 1, 0.691), ("sst2", 1, 0.509)]:
        labels = glue_files.read(str(shared_data / "glue"), glue_task(name))["dev"].labels
        assert np.mean(labels == label) == pytest.approx(share, abs=5e-4)
