"""Dataset of feature-based NER: the same as that of `tasks/ner/dataset.py`."""

from bertjax.tasks.ner.dataset import OUTPUT, DataFields, Dataset, from_inputs, input_fields

__all__ = ["OUTPUT", "DataFields", "Dataset", "from_inputs", "input_fields"]
