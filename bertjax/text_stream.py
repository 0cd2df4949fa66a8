"""Text out of tokens while they come: no half characters, nothing of a stop string."""

from collections.abc import Sequence

from bertjax.interfaces import Tokenizer

_UNFINISHED = "\ufffd"
"""What a decoder puts where the bytes of a character are not all there."""


class TextStream:
    """What follows a prompt.

    Attributes:
      text: What was given out.
      finished: Whether a stop string came, or the end.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()):
        """Begins with nothing.

        Args:
          tokenizer: Of the tokens.
          prompt: Tokens that come before, and are not part of the text.
          stop: The text ends before the first of these.
        """
        self.text, self.finished = "", False
        self._tokenizer, self._stop = tokenizer, tuple(filter(None, stop))
        self._ids, self._begin = list(prompt), len(tokenizer.decode(list(prompt)))

    def add(self, token: int, *, last: bool = False) -> str:
        """Takes a token and gives the text that is certain now; `last` holds nothing back."""
        self._ids.append(token)
        known = self._tokenizer.decode(self._ids)[self._begin :]
        found = [at for at in map(known.find, self._stop) if at >= 0]
        if found:
            self.finished = True
            return self._up_to(known, min(found))
        if last:
            self.finished = True
            return self._up_to(known, len(known))
        return self._up_to(known, self._certain(known))

    def end(self) -> str:
        """Gives what was held back."""
        self.finished = True
        known = self._tokenizer.decode(self._ids)[self._begin :]
        return self._up_to(known, len(known))

    def _certain(self, known: str) -> int:
        """How much of a text no further token can change or make part of a stop string."""
        end = len(known.rstrip(_UNFINISHED))
        for stop in self._stop:
            for size in range(min(len(stop) - 1, end), 0, -1):
                if known[:end].endswith(stop[:size]):
                    end -= size
                    break
        return end

    def _up_to(self, known: str, end: int) -> str:
        new = known[len(self.text) : end]
        self.text += new
        return new
