"""BERT-mini as published: `configs/bert.py:mini`, where its record stands.

bertjax pretrain --config configs/bert_mini.py --workdir runs/bert_mini \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-uncased
"""

from ml_collections import ConfigDict

from configs import bert


def get_config() -> ConfigDict:
    """The recipe."""
    return bert.get_config("mini")
