"""Filter blocks of documents: rules in worker processes, duplicates in the order of the input."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertjax.corpus.encoding import DocumentEncoder
from bertjax.corpus.filters import DocumentFilter, DuplicateIndex
from bertjax.corpus.reading import Block
from bertjax.corpus.workers import WorkerPool

FILTER, ENCODE = "filter", "encode"


class DocumentStages:
    """A function of worker processes: (stage, texts) -> the results of the stage.

    One pool of processes runs both stages, so that no process is idle while the other stage runs.

    Args:
      bounds: The filters; see `filters.parse_filters`.
      encoder_arguments: The arguments of `DocumentEncoder`.
    """

    def __init__(self, bounds: Mapping[str, float], encoder_arguments: tuple[str, bool]):
        self._stages = {
            FILTER: DocumentFilter(bounds),
            ENCODE: DocumentEncoder(*encoder_arguments),
        }

    def __call__(self, task: tuple[str, list[str]]) -> Any:
        stage, texts = task
        return self._stages[stage](texts)


def filter_blocks(
    blocks: Iterable[Block], pool: WorkerPool, bounds: Mapping[str, float], seen: Iterable[int]
) -> Iterator[Block]:
    """Yield all blocks without the documents that a filter drops, which are counted.

    Args:
      blocks: The blocks in order.
      pool: Processes that call `DocumentStages`.
      bounds: The filters; see `filters.parse_filters`.
      seen: Keys of the documents that earlier calls have kept.
    """
    index = DuplicateIndex(bounds, seen)
    for block, verdicts in pool.imap((block, (FILTER, block.texts)) for block in blocks):
        reasons: Counter[str] = Counter()
        texts, kept_keys, keys = [], [], iter(verdicts.keys)
        for text, rule in zip(block.texts, verdicts.broken_rules, strict=True):
            key = None if rule else next(keys)
            reason = rule or index.add(key)
            if reason:
                reasons[reason] += 1
            else:
                texts.append(text)
                kept_keys.append(key)
        block.texts, block.dropped = texts, block.dropped + reasons
        block.keys = kept_keys
        yield block
