"""Reading documents and pairs from TensorFlow Datasets."""

import sys

import numpy as np
import pytest

from bertjax.corpus.text import read_documents
from bertjax.errors import UserError

tfds = pytest.importorskip("tensorflow_datasets")


def prepare(folder, features, examples, file_format="array_record", supervised_keys=None):
    """Prepare a dataset called `small` with one split `train`."""

    class Small(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.2.0")

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                supervised_keys=supervised_keys,
            )

        def _split_generators(self, dl_manager):
            return {"train": iter(enumerate(examples))}

        def _generate_examples(self):
            raise NotImplementedError

    Small.__module__ = "small"  # else its package's files are looked for
    Small(data_dir=folder, file_format=file_format).download_and_prepare()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("tfds"))
    text = tfds.features.Text()
    examples = [{"title": f"t{n}", "text": f"Text {n}.\n\u00e9", "id": n} for n in range(300)]
    prepare(folder, {"title": text, "text": text, "id": np.int64}, examples)
    return folder


def test_the_text_of_every_example_is_read(folder):
    found = list(read_documents(["tfds:small:train"], tfds_data_dir=folder))
    assert sorted(found) == sorted(f"Text {n}.\n\u00e9" for n in range(300))
    assert found == list(read_documents(["tfds:small:1.2.0:train"], tfds_data_dir=folder))
    assert found[:30] == list(read_documents(["tfds:small:train[:10%]"], tfds_data_dir=folder))
    assert "tensorflow" not in sys.modules


def test_without_a_feature_text_all_strings_are_read(tmp_path):
    text = tfds.features.Text()
    features = {"sentence1": text, "sentence2": text, "label": np.int64}
    prepare(str(tmp_path), features, [{"sentence1": "One.", "sentence2": "Two.", "label": 0}])
    assert list(read_documents(["tfds:small:train"], tfds_data_dir=str(tmp_path))) == ["One.\nTwo."]


@pytest.mark.parametrize("keys", [None, ("b", "a")])
def test_two_strings_are_a_pair_in_the_order_of_supervised_keys(keys, tmp_path):
    text = tfds.features.Text()
    example = {"a": "One.\nTwo.", "b": "Three."}
    prepare(str(tmp_path), {"a": text, "b": text}, [example], supervised_keys=keys)
    found = list(
        read_documents(["tfds:small:train"], format="source-target", tfds_data_dir=str(tmp_path))
    )
    assert found == ["Three.\nOne. Two." if keys else "One. Two.\nThree."]


def test_a_single_string_feature_is_no_pair(tmp_path):
    prepare(str(tmp_path), {"a": tfds.features.Text()}, [{"a": "One."}])
    with pytest.raises(UserError, match="has no pairs: got the string features a, expected two"):
        list(
            read_documents(
                ["tfds:small:train"], format="source-target", tfds_data_dir=str(tmp_path)
            )
        )


def test_a_dataset_without_strings_is_refused(tmp_path):
    prepare(str(tmp_path), {"label": np.int64}, [{"label": 0}])
    with pytest.raises(UserError, match="has no text: got the features label"):
        list(read_documents(["tfds:small:train"], tfds_data_dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tfds:small", "expected tfds:NAME:SPLIT"),
        ("tfds:small:test", "has no split 'test': known: train"),
        ("tfds:smal:train", "no prepared dataset 'smal' in"),
        ("tfds:small/x:train", "no prepared dataset 'small/x' in"),
        ("tfds:small:train[:x]", r"check the split 'train\[:x\]'"),
    ],
)
def test_user_errors_are_one_line(folder, source, message):
    with pytest.raises(UserError, match=message) as raised:
        list(read_documents([source], tfds_data_dir=folder))
    assert "\n" not in str(raised.value)
