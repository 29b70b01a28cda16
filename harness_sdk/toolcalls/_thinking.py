"""Which parts of a completion are thoughts. Does not find calls; the dialects ask it what to discard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Thinking:
    """Follows the think tags of one text from left to right.

    A text may begin inside a thought, because the chat template opened it; a block may quote its own opening tag. So a
    closing tag is paired with the openings seen since the block began (one is granted at the start of the text), and
    whatever was read in between is taken back. A closing tag with nothing left to close is plain text.

    Attributes:
        inside: Whether the position is inside a block that the text itself opened.
        unpaired: Openings that a later closing tag may still close.
        mark: How many results existed when the block began.
    """

    inside: bool = False
    unpaired: int = 1
    mark: int = 0

    def open(self, results: int) -> None:
        """Notes an opening tag when so many results exist."""
        if self.inside:
            self.unpaired += 1
        else:
            self.inside, self.unpaired, self.mark = True, 1, results

    def close(self) -> int | None:
        """Notes a closing tag. Returns how many results remain, or None when it closes nothing."""
        if not self.unpaired:
            return None
        self.inside = False
        self.unpaired -= 1
        return self.mark
