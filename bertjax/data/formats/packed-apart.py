"""Packed windows whose documents do not attend to each other; each has its own positions."""

import numpy as np

from bertjax.data.format import HostBatch
from bertjax.data.formats import packed


class Format(packed.Format):
    """See `TokenWindows`."""

    separate_documents = True
    packs_documents = True

    @classmethod
    def random_batch(cls, model, shape, random) -> HostBatch:
        position_ids = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
        extra = {"pack_ids": np.ones(shape, np.int32), "position_ids": position_ids}
        return super().random_batch(model, shape, random) | extra
