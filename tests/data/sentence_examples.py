"""Examples made of sentences, for tests: special tokens differ from all positions of a corpus."""

import numpy as np

from bertjax import catalog

CLS, SEP, PAD = 1_000_001, 1_000_002, 1_000_003


def make(corpus, format, pair="none", **fields):
    fields = {"max_seq_length": 67, "seed": 5, "cls_id": CLS, "sep_id": SEP, "pad_id": PAD} | fields
    examples_class = catalog.load("data/formats", format).Format.examples_class
    return examples_class(corpus, pair=pair, **fields)


def whole_epoch(examples, epoch=0):
    return examples.build(epoch, np.arange(examples.num_examples))


def segments_of(batch):
    """The tokens of the segments of each example, after checking all other arrays."""
    found = []
    for ids, segment_ids, mask in zip(
        batch["input_ids"], batch["segment_ids"], batch["attention_mask"], strict=True
    ):
        length = int(mask.sum())
        assert mask[:length].all()
        assert (ids[length:] == PAD).all()
        assert (segment_ids[length:] == 0).all()
        assert ids[0] == CLS
        assert ids[length - 1] == SEP
        parts = []
        for number in range(segment_ids.max() + 1):
            part = ids[:length][segment_ids[:length] == number]
            assert part[-1] == SEP
            parts.append(part[1 - number : -1].tolist())
        found.append(parts)
    return found
