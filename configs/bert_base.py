r"""BERT-base as published: the config of `configs/bert.py:base`.

    bertjax pretrain --config configs/bert_base.py --workdir runs/bert_base \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-uncased

Recipe, scores and cost are in `configs/bert.py`.
"""

from ml_collections import ConfigDict

from configs import bert


def get_config() -> ConfigDict:
    """Returns the config."""
    return bert.get_config("base")
