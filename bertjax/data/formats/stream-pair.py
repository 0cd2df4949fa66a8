"""Streams whose examples are two segments, the second of which follows the first (XLNet)."""

from bertjax.data.formats import stream


class Format(stream.Format):
    """See `Streams`."""

    num_segments = 2
