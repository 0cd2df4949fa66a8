r"""BERT-mini as published: the config of `configs/bert.py:mini`.

    bertjax pretrain --config configs/bert_mini.py --workdir runs/bert_mini \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-uncased

Recipe, scores and cost are in `configs/bert.py`.
"""

from ml_collections import ConfigDict

from configs import bert


def get_config() -> ConfigDict:
    """Returns the config."""
    return bert.get_config("mini")
