r"""BERT with 30% masks instead of 15%: `configs/bert_masks30.py:SIZE`, base or large, and tiny.

    bertjax pretrain --config configs/bert_masks30.py:base --workdir runs/bert_masks30 \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-uncased

`configs/bert.py` with twice the number of predictions per text. Wettig et al. 2023 find that
masking more than 15% is better, especially for larger models; MosaicBERT (Portes et al. 2023) is
trained with 30%. The additional cost is the logits of twice the number of tokens.

    size    layers  width  heads   parameters
    base        12    768     12  109,482,240
    large       24   1024     16  335,141,888
    tiny         2    128      2      610,176   (a demonstration, vocabulary 1,024)

No scores are published for this change alone: both papers make other changes as well.
"""

from ml_collections import ConfigDict

from configs import bert, common

SIZES = ("tiny", "base", "large")


def get_config(size: str = "base") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = bert.get_config(size)
    config.objectives.mlm.masked_lm_prob = 0.3
    return common.shrink_to_demo(config) if size == "tiny" else config
