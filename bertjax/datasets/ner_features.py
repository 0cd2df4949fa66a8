"""Words with tags, for `tasks/ner_features.py`: what `datasets/ner.py` reads and scores."""

from bertjax.datasets.ner import ANSWERS, DataFields, Dataset, ask

__all__ = ["ANSWERS", "DataFields", "Dataset", "ask"]
