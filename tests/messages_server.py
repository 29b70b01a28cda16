"""A server on this machine that speaks the streaming Messages API and misbehaves on demand: for tests of proposers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from http_server import Reply, Server


@dataclass
class Says:
    """One reply: content blocks, or what goes wrong.

    ``cut_after`` cuts the connection after so many events; ``error_after`` sends an error event there; ``delay`` waits
    before the first event and ``pause`` before each.
    """

    blocks: list[dict[str, Any]] = field(default_factory=list)
    stop: str = ""
    usage: dict[str, int] = field(default_factory=lambda: {"input_tokens": 1000, "output_tokens": 200})
    details: dict[str, Any] | None = None
    status: int = 200
    message: str = "no luck"
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    error_after: int | None = None
    delay: float = 0.0
    pause: float = 0.0


Script = Callable[[dict[str, Any], int], Says]
"""A request's body and number → the reply."""


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(name: str, number: int = 0, /, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{name}_{number}", "name": name, "input": arguments}


def events(says: Says) -> Iterator[dict[str, Any]]:
    """The stream of a reply. Tool inputs come in small pieces; an input given as text is sent as it stands."""
    start = {**says.usage, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    yield {"type": "message_start", "message": {**message, "stop_sequence": None, "usage": start}}
    yield {"type": "ping"}
    for index, block in enumerate(says.blocks):
        kind = block["type"]
        empty = {"text": {"text": ""}, "tool_use": {"input": {}}, "thinking": {"thinking": "", "signature": ""}}
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty[kind]}}
        deltas = []
        if kind == "tool_use":
            whole = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
            step = max(16, len(whole) // 8)
            deltas = [{"type": "input_json_delta", "partial_json": ""}]
            deltas += [
                {"type": "input_json_delta", "partial_json": whole[i : i + step]} for i in range(0, len(whole), step)
            ]
        elif kind == "text":
            deltas = [{"type": "text_delta", "text": block["text"]}]
        else:
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            if block["signature"]:
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    calls = any(block["type"] == "tool_use" for block in says.blocks)
    stop = says.stop or ("tool_use" if calls else "end_turn")
    delta = {"stop_reason": stop, "stop_sequence": None, "stop_details": says.details}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": says.usage["output_tokens"]}}
    yield {"type": "message_stop"}


class MessagesServer(Server):
    """A running server; ``says`` decides what it says. It refuses what the real one refuses."""

    def __init__(self, says: Script) -> None:
        def script(body: dict[str, Any], number: int) -> Reply:
            problem = None if self.paths[number] == "/v1/messages" else f"no {self.paths[number]}"
            problem = problem or invalid(body)
            return self.reply(Says(status=400, message=problem) if problem else says(body, number))

        super().__init__(script)

    def reply(self, says: Says) -> Reply:
        """Turns what is to be said into what is to be sent."""
        if says.status != 200:
            error = {"type": "error", "error": {"type": "api_error", "message": says.message}}
            return Reply(error, says.status, says.headers, says.delay)
        headers = {"content-type": "text/event-stream", "connection": "close"}
        return Reply(self.stream(says), 200, headers, says.delay, cut=says.cut_after is not None)

    def stream(self, says: Says) -> Iterator[bytes]:
        """Yields the events as they go over the wire."""
        for number, event in enumerate(events(says)):
            self.stopping.wait(says.pause)
            if number == says.cut_after:
                return
            if number == says.error_after:
                event = {"type": "error", "error": {"type": "overloaded_error", "message": says.message}}
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


@contextmanager
def speaking(script: Script) -> Iterator[MessagesServer]:
    server = MessagesServer(script)
    try:
        yield server
    finally:
        server.close()


def invalid(body: dict[str, Any]) -> str | None:
    """Why the real server would refuse a request: roles, empty blocks, results that do not follow their calls."""
    messages = body["messages"]
    if not body.get("stream") or not body.get("max_tokens", 0) > 0:
        return "not a streaming request with max_tokens"
    if [m["role"] for m in messages] != [("user", "assistant")[i % 2] for i in range(len(messages))]:
        return "roles must alternate"
    if messages[-1]["role"] != "user":
        return "no prefill"
    marks = json.dumps(body).count("cache_control")
    if marks > 4:
        return f"{marks} cache marks"
    open_calls: list[str] = []
    for message in messages:
        blocks = message["content"]
        if not blocks or any(b["type"] == "text" and not b["text"].strip() for b in blocks):
            return "empty content"
        if any(b["type"] == "thinking" and not b.get("signature") for b in blocks):
            return "a thought without signature"
        if any(b["type"] == "tool_use" and not isinstance(b["input"], dict) for b in blocks):
            return "tool input must be an object"
        if message["role"] == "user":
            if [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"] != open_calls:
                return "tool results do not follow their calls"
            open_calls = []
        else:
            open_calls = [b["id"] for b in blocks if b["type"] == "tool_use"]
    return None
