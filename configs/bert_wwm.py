r"""BERT with whole-word masks: `configs/bert_wwm.py:SIZE`, English in base and large, and tiny.

    bertjax pretrain --config configs/bert_wwm.py:large --workdir runs/bert_wwm \
        --config.data.corpus=corpora/wiki_books --config.tokenizer.path=vocab/bert-base-uncased

`configs/bert.py`, except that all tokens of a word are selected together; each token is then
masked, replaced or kept independently, and the number of predictions is the same. Released by
google-research in 2019 as a variant of BERT-large; `chinese` is Cui et al. 2021
(Chinese-BERT-wwm).

Chinese text must be segmented into words, separated by spaces, before `bertjax prepare`:
使用 语言 模型. The tokenizer must not split the words into characters: write
{"tokenize_chinese_chars": false} to `tokenizer_config.json` next to the released `vocab.txt`, and
使用 becomes 使 ##用, which is masked as one word. Texts of tasks need the same segmenter. A
SentencePiece vocabulary that is trained on segmented text needs no such setting.

    size     layers  width  heads   parameters   published
    base         12    768     12  109,482,240
    large        24   1024     16  335,141,888   SQuAD 1.1 92.8 F1 (BERT 91.0), MNLI 87.1 (86.1)
    chinese      12    768     12  102,267,648   CMRC 2018 dev 85.6 F1 (BERT 84.5)
    tiny          2    128      2      610,176   (a demonstration, vocabulary 1,024)
"""

from ml_collections import ConfigDict

from configs import bert, common

SIZES = ("tiny", "base", "large", "chinese")


def get_config(size: str = "large") -> ConfigDict:
    """Returns the config of a size.

    Raises:
      UserError: Unknown size.
    """
    common.check_argument(size, SIZES)
    config = bert.get_config("base" if size == "chinese" else size)
    config.model.size = size
    config.objectives.mlm.masking = "word"
    if size == "chinese":
        config.model.vocab_size = config.tokenizer.vocab_size = 21128
    return common.shrink_to_demo(config) if size == "tiny" else config
