"""Dataset of named entity recognition: tagged sentences in CoNLL's column format."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from bertjax.constraints import AnyText, OneOf
from bertjax.data.random import sample
from bertjax.errors import UserError
from bertjax.metrics import entities as metrics_entities
from bertjax.tasks import dataset
from bertjax.tasks.dataset import EncodingSpec, Line, PredictionRequest, find_files
from bertjax.tasks.ner import conll as ner_conll
from bertjax.tasks.ner import words as ner_words
from bertjax.tasks.ner.conll import Sentence

Fields = Mapping[str, Any]

FILES = {
    "train": ("train.txt", "eng.train"),
    "dev": ("valid.txt", "dev.txt", "eng.testa"),
    "test": ("test.txt", "eng.testb"),
}
"""File names of each split to look for, in order of preference."""


class Split(list[Sentence]):
    """The sentences of a split."""

    def sample(self, size: int, seed: int) -> "Split":
        """Returns `size` random sentences, sampled without replacement, in file order."""
        return Split(self[i] for i in sample(len(self), size, seed))


class DataFields(dataset.DataFields):
    """The fields of `config.data`.

    Attributes:
      train_file: File name of the train split; "" for the released name.
      dev_file: File name of the dev split; "" for the released name.
      test_file: File name of the test split; "" for the released name.
      scheme: Tagging scheme of the files: auto, iob1, iob2, bioes or as-it-is.
      document_context: Whether sequences are filled with the surrounding words of the document.
    """

    train_file: AnyText
    dev_file: AnyText
    test_file: AnyText
    scheme: Annotated[str, OneOf(ner_conll.SCHEMES)]
    document_context: bool


class Dataset:
    """NER dataset; see `interfaces.Dataset`. One sequence per sentence; long ones are split."""

    def __init__(self, data: str, task: Fields, fields: Fields, spec: EncodingSpec):
        """Reads and encodes the available splits.

        Args:
          data: Folder of the files.
          task: `config.task`.
          fields: `config.data`; see `DataFields`.
          spec: The encoding: tokenizer, lengths and batch sizes.

        Raises:
          UserError: train or dev is missing, or a file is malformed.
        """
        self.name = "ner"
        paths = find_files(data, FILES, fields)
        self.sentences = {
            split: Split(ner_conll.read(path, fields["scheme"])) for split, path in paths.items()
        }
        self._encode(ner_conll.tag_names(self.sentences["train"]), spec, fields["document_context"])
        self.task_fields = MappingProxyType({"labels": self.tags})

    def _encode(self, tags: tuple[str, ...], spec: EncodingSpec, document_context: bool) -> None:
        """Encodes `sentences`, whose tags must be some of `tags`."""
        self.tags, self.words, self.batches = tags, {}, {}
        for split, sentences in self.sentences.items():
            ner_conll.check_tags(sentences, self.tags)
            sampled = spec.subsample(split, sentences)
            self.words[split] = encode_sentences(sampled, self.tags, spec, document_context)
            self.batches[split] = spec.batches(split, self.words[split].pairs, None)
        self.dev = ("dev",)
        self.test = ("test",) if "test" in self.batches else ()
        self.left_out = dict.fromkeys(self.batches, ())

    def score(self, split: str, predictions: Int[np.ndarray, "n L"]) -> dict[str, float]:
        """Returns precision, recall and F1 of entities and tag accuracy, as `conlleval`."""
        references = [sentence.tags for sentence in self.sentences[split]]
        return metrics_entities.score(self.predicted_tags(split, predictions), references)

    def headline(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns `dev/score`: the entity-level F1 on the dev split."""
        return {"dev/score": values["dev/f1"]}

    def write(self, split: str, predictions: Int[np.ndarray, "n L"], folder: pathlib.Path) -> None:
        """Writes all columns and the predicted tag as the last column, the input of `conlleval`."""
        tags = self.predicted_tags(split, predictions)
        ner_conll.write(folder / f"{split}.txt", self.sentences[split], tags)

    def predicted_tags(self, split: str, predictions: Int[np.ndarray, "n L"]) -> list[list[str]]:
        """Returns the predicted tag of every word of every sentence."""
        found = self.words[split].by_sentence(predictions)
        return [[self.tags[number] for number in numbers] for numbers in found]


OUTPUT = "scores"
"""The method of `tasks/ner/head.py` whose output `from_inputs` converts to answers."""


def input_fields(task: Fields) -> tuple[str, ...]:
    """The names of the fields of an input; see `from_inputs`."""
    return ("words",)


def from_inputs(
    lines: Iterable[Line], data: str, task: Fields, fields: Fields, spec: EncodingSpec
) -> PredictionRequest:
    """Encodes user inputs: words separated by spaces, or a JSON object with a list of "words".

    Answers have `words`, `tags`, `probabilities` (of the predicted tag of each word), and
    `entities` with type, text and the range of words, unless the tags are other classes, such as
    the parts of speech of an imported model.

    Raises:
      UserError: a line is empty, or not such an object.
    """
    (key,) = input_fields(task)
    rows = [parse_words(line, key) for line in lines]
    labels = task["labels"]
    encoded = encode_sentences(
        untagged_sentences(rows, labels), labels, spec, fields["document_context"]
    )

    def answers(logits: Float[np.ndarray, "n L C"]) -> list[dict[str, Any]]:
        found = encoded.by_sentence(logits)
        return [
            tagged_words(key, words, labels, own) for words, own in zip(rows, found, strict=True)
        ]

    return PredictionRequest(spec.batches("predict", encoded.pairs, None), answers)


def tagged_words(
    key: str, words: Sequence[str], labels: Sequence[str], logits: Float[np.ndarray, "w C"]
) -> dict[str, Any]:
    """Returns the answer for the words of an input; see `from_inputs`.

    Args:
      key: The key of the words.
      words: The words.
      labels: Names of the classes.
      logits: Logits of the classes.
    """
    probabilities = softmax(logits, axis=-1)
    tags = [labels[number] for number in probabilities.argmax(axis=-1)]
    probabilities = probabilities.max(axis=-1).tolist()
    answer = {key: list(words), "tags": tags, "probabilities": probabilities}
    if not all(map(ner_conll.is_tag, labels)):
        return answer
    entities = [
        {"type": kind, "text": " ".join(words[begin:end]), "words": [begin, end]}
        for kind, begin, end in metrics_entities.extract_entities(tags)
    ]
    return answer | {"entities": entities}


def untagged_sentences(rows: Sequence[Sequence[str]], labels: Sequence[str]) -> list[Sentence]:
    """Builds sentences of user inputs, each a document, with the first label as a placeholder."""
    return [
        Sentence(words, labels[:1] * len(words), ((),) * len(words), ("",) * len(words), number)
        for number, words in enumerate(rows)
    ]


def parse_words(line: Line, key: str) -> tuple[str, ...]:
    """Parses words separated by spaces, or a JSON object with a list of words or such a text.

    Args:
      line: The line.
      key: The key of the words.

    Raises:
      UserError: there is no word, or the object has no such list.
    """
    where, text = line
    words = text.split()
    if text.lstrip().startswith("{"):
        words = dataset.parse_json_object(line, {key: "a list of strings"})[key]
        words = words.split() if isinstance(words, str) else words
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not words:
        raise UserError(
            f'{where}: expected words, or {{"{key}": ["...", "..."]}} with at least one word; fix '
            "the line"
        )
    return tuple(words)


def encode_sentences(
    sentences: Sequence[Sentence],
    tags: Sequence[str],
    spec: EncodingSpec,
    document_context: bool = False,
) -> ner_words.TaggedWords:
    """Encodes sentences; see `tasks/ner/words.py`."""
    return ner_words.encode(
        sentences,
        spec.tokenizer,
        spec.max_seq_length,
        tag_names=tags,
        cls_last=spec.cls_last,
        max_chars_per_word=spec.max_chars_per_word,
        document_context=document_context,
    )
