"""The part of a model's message that may hold its answer.

Reasoning between ``<think>`` tags and quoted tool output are not an answer, so both are cut before a box or a tag is
looked for. Does not decide which message of an episode is the last one, and does not read the answer itself.
"""

from __future__ import annotations

import re

# Tags under which search agents (Search-R1, Hermes, Qwen) see tool output inside their own text.
_QUOTED = ("information", "tool_response", "tool_result", "search_results", "search_result", "documents", "observation")
_QUOTED_TAG = re.compile(rf"<(/?)({'|'.join(_QUOTED)})(?:\s[^<>]*)?>", re.IGNORECASE)
_THINK_OPEN = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_THINK_CLOSE = re.compile(r"</think(?:ing)?>", re.IGNORECASE)


def final_text(text: str) -> str:
    """Returns ``text`` without its reasoning and without the tool output that it quotes.

    Everything up to the last ``</think>`` is reasoning (chat templates often open the block in the prompt), and so is
    everything after a ``<think>`` that is never closed.
    """
    closed = 0
    for match in _THINK_CLOSE.finditer(text):
        closed = match.end()
    text = text[closed:]
    opened = _THINK_OPEN.search(text)
    if opened:
        text = text[: opened.start()]
    return _without_quotes(text)


def _without_quotes(text: str) -> str:
    kept: list[str] = []
    start, inside = 0, None
    for match in _QUOTED_TAG.finditer(text):
        closing, name = match.group(1) == "/", match.group(2).lower()
        if inside is None and not closing:
            kept.append(text[start : match.start()])
            inside = name
        elif inside == name and closing:
            inside, start = None, match.end()
    if inside is None:
        kept.append(text[start:])
    return " ".join(kept) if len(kept) > 1 else "".join(kept)
