"""`AnthropicProposer`: Claude as the proposer, through the official ``anthropic`` SDK.

Streams each reply, so that a connection that hangs is noticed, and caches the prompt up to the last turn. Retries are
`harness_sdk.policies.api`, the only layer that retries; the conversation is `optimizers.proposers.llm.conversation`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from harness_sdk.policies.api import ApiClient, ApiConfig, read_call
from harness_sdk.policies.base import PolicyError
from harness_sdk.types import ParseFailure
from optimizers.proposers.llm.conversation import Caps, Exchange, Price, Prompt, Reply, Usage, converse
from optimizers.proposers.llm.tools import TOOLS, ToolResult, ToolUse
from optimizers.proposers.protocol import Brief, Proposed, ProposerSetupError

Effort = Literal["", "low", "medium", "high", "xhigh", "max"]

PRICES_2026_11_29: Mapping[str, Price] = {
    "claude-opus-5-5": Price(4.0, 0.20, 5.0, 20.0),
    "claude-opus-5": Price(5.0, 0.50, 6.25, 25.0),
    "claude-opus-4-8": Price(5.0, 0.50, 6.25, 25.0),
    "claude-opus-4-7": Price(5.0, 0.50, 6.25, 25.0),
    "claude-opus-4-6": Price(5.0, 0.50, 6.25, 25.0),
    "claude-opus-4-5": Price(5.0, 0.50, 6.25, 25.0),
    "claude-sonnet-4-5": Price(3.0, 0.30, 3.75, 15.0),
    "claude-haiku-4-5": Price(1.0, 0.10, 1.25, 5.0),
}
"""List prices on that day (platform.claude.com, models and pricing; cache writes for five minutes)."""

SILENCE = 120.0
"""Seconds without a byte, a ping included, after which a stream counts as cut."""
CHARS_PER_TOKEN = 4
"""To count what came of a reply that was cut."""
CACHED = {"cache_control": {"type": "ephemeral"}}

_STOP: Mapping[str, Literal["tools", "end", "cut", "refused", "full"]] = {
    "tool_use": "tools",
    "max_tokens": "cut",
    "refusal": "refused",
    "model_context_window_exceeded": "full",
}
_KEPT = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
}


class AnthropicProposer:
    """A Claude model writes the candidates.

    Attributes:
        caps: What one round may take.
    """

    def __init__(
        self,
        model: str = "claude-opus-4-7",
        *,
        effort: Effort = "high",
        caps: Caps | None = None,
        price: Price | None = None,
        base_url: str | None = None,
        timeout: float = 900.0,
        retries: int = 6,
    ) -> None:
        """Prepares a client; nothing is sent yet. The key comes from ``ANTHROPIC_API_KEY`` and is stored nowhere.

        Args:
            model: The model's name.
            effort: How much it thinks. Empty sends neither this nor adaptive thinking, for models that lack them.
            caps: What one round may take.
            price: Its prices; None takes the list's (`PRICES_2026_11_29`).
            base_url: Where the server is; None is Anthropic.
            timeout: Seconds for one reply.
            retries: Attempts after the first, with growing pauses, where the failure may pass.

        Raises:
            ImportError: The SDK is not installed.
            ProposerSetupError: There is no key, or the model's price is not known.
        """
        price = price or _listed(model)
        try:
            config = ApiConfig("anthropic", "ANTHROPIC_API_KEY", base_url, 1, timeout, retries)
            api = ApiClient(config, "AsyncAnthropic", None)
        except PolicyError as error:
            raise ProposerSetupError(str(error)) from None
        self.caps = caps or Caps()
        self._model = ClaudeModel(model, effort, price, api)

    async def propose(self, brief: Brief) -> Proposed:
        """Writes candidates; see `optimizers.proposers.llm.conversation.converse`."""
        return await converse(self._model, brief, self.caps)


class ClaudeModel:
    """A `Model` behind the messages protocol."""

    def __init__(self, name: str, effort: str, price: Price, api: ApiClient) -> None:
        self.name, self.price = name, price
        self._effort, self._api = effort, api

    async def reply(
        self, prompt: Prompt, exchanges: Sequence[Exchange], limit: int, lost: Callable[[Usage], None]
    ) -> Reply:
        """Makes one call; see `Model`."""
        fields: dict[str, Any] = {
            "model": self.name,
            "max_tokens": limit,
            "system": [{"type": "text", "text": prompt.system, **CACHED}],
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in TOOLS
            ],
            "messages": messages(prompt, exchanges),
        }
        if self._effort:  # in the extra body because earlier SDKs do not name these
            fields["extra_body"] = {"thinking": {"type": "adaptive"}, "output_config": {"effort": self._effort}}

        async def call(client: Any) -> Any:
            answer = await self._stream(client, fields, lost)
            return json.dumps(answer)

        return read(await self._api.send(call))

    async def close(self) -> None:
        """Closes the connections."""
        await self._api.close()

    async def _stream(self, client: Any, fields: Mapping[str, Any], lost: Callable[[Usage], None]) -> dict[str, Any]:
        """Makes one attempt. What it took is lost if it fails after the server has begun to answer."""
        import anthropic

        message: dict[str, Any] = {"content": [], "usage": {}}
        stream = None
        try:
            stream = await client.messages.create(**fields, stream=True, timeout=SILENCE)
            async for event in stream:
                _take(message, event.to_dict())
            if not message.get("stop_reason"):
                raise anthropic.APIConnectionError(message="the stream ended early", request=stream.response.request)
        except (anthropic.AuthenticationError, anthropic.PermissionDeniedError) as error:  # its words may hold the key
            raise ProposerSetupError(
                f"{self._api.where} refused the key ({error.status_code}); check ANTHROPIC_API_KEY"
            ) from None
        except anthropic.NotFoundError:
            raise ProposerSetupError(f"{self._api.where} knows no model {self.name!r}; check its name") from None
        except BaseException as error:
            if message.get("stop_reason") and isinstance(error, Exception):
                return message  # it was cut off, but only after all was said
            if message["usage"]:
                lost(_usage(message, cut=True))
            if stream is None or not isinstance(error, Exception) or isinstance(error, anthropic.APIConnectionError):
                raise
            # An error event, or whatever the HTTP library raises in mid-stream: all may pass.
            raise anthropic.APIConnectionError(message=_said(error), request=stream.response.request) from None
        finally:
            if stream is not None:
                await stream.close()
        return message


def _listed(model: str) -> Price:
    price = PRICES_2026_11_29.get(re.sub(r"-\d{8}$", "", model))
    if price is None:
        known = ", ".join(PRICES_2026_11_29)
        raise ProposerSetupError(f"no price is known for {model!r}, so no cap could hold; give one. Known: {known}")
    return price


def _said(error: Exception) -> str:
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, Mapping) else None
    return str(inner.get("message")) if isinstance(inner, Mapping) else f"{type(error).__name__}: {error}"


def _take(message: dict[str, Any], event: dict[str, Any]) -> None:
    """Takes one event of the stream into the message."""
    content = message["content"]
    match event.get("type"):
        case "message_start":
            message["usage"].update(event["message"].get("usage") or {})
        case "content_block_start":
            block = event["content_block"]
            content.append({**block, "input": ""} if block.get("type") == "tool_use" else dict(block))
        case "content_block_delta":
            delta, block = event["delta"], content[event["index"]]
            for kind in ("text", "thinking", "signature"):
                block.update({kind: block.get(kind, "") + delta[kind]} if kind in delta else {})
            if "partial_json" in delta:
                block["input"] += delta["partial_json"]
        case "message_delta":
            message.update({k: v for k, v in event["delta"].items() if v is not None})
            message["usage"].update({k: v for k, v in (event.get("usage") or {}).items() if v is not None})


def _usage(message: Mapping[str, Any], *, cut: bool = False) -> Usage:
    usage = message["usage"]
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    counts = [int(usage.get(kind) or 0) for kind in kinds]
    if cut:
        written = sum(len(str(value)) for block in message["content"] for value in block.values())
        counts[3] = max(counts[3], written // CHARS_PER_TOKEN)
    return Usage(*counts)


def read(message: Mapping[str, Any]) -> Reply:
    """Reads a streamed message; the input of tool calls is still JSON text.

    Args:
        message: ``content``, ``stop_reason``, ``usage``.
    """
    stop = _STOP.get(str(message.get("stop_reason")), "end")
    blocks = [block for block in message["content"] if block.get("type") in _KEPT]
    content: list[dict[str, Any]] = []
    uses: list[ToolUse] = []
    for number, block in enumerate(blocks):
        block = {"type": block["type"], **{key: block.get(key) or "" for key in _KEPT[block["type"]]}}
        if block["type"] == "tool_use":
            use = _use(block, cut=stop == "cut" and number == len(blocks) - 1)
            uses.append(use)
            block["input"] = dict(use.arguments)
        elif not all(block.values()) and not (block["type"] == "thinking" and block["signature"]):
            continue  # the server refuses empty texts, and thoughts that were cut off before their signature
        content.append(block)
    content = content or [{"type": "text", "text": "(nothing)"}]
    details = message.get("stop_details")
    why = str((details.get("explanation") or details.get("category") or "") if isinstance(details, Mapping) else "")
    return Reply(content, tuple(uses), "tools" if uses and stop == "end" else stop, why, _usage(message))


def _use(block: Mapping[str, Any], *, cut: bool) -> ToolUse:
    if cut:
        why = "the reply was cut off at its token limit in this call, so nothing was done; send it again, shorter"
        return ToolUse(block["id"], block["name"], {}, why)
    call = read_call(block["name"], block["input"], block["id"])
    if isinstance(call, ParseFailure):
        return ToolUse(block["id"], block["name"], {}, call.reason)
    return ToolUse(block["id"], call.name, call.arguments)


def messages(prompt: Prompt, exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
    """Returns a conversation as messages, with cache marks after the opening and at the end."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": prompt.opening, **CACHED}]}]
    for exchange in exchanges:
        blocks = [_result(result) for result in exchange.results]
        blocks += [{"type": "text", "text": exchange.note}] if exchange.note else []
        turns.append({"role": "assistant", "content": exchange.reply.content})
        turns.append({"role": "user", "content": blocks})
    turns[-1]["content"][-1].update(CACHED)
    return turns


def _result(result: ToolResult) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": result.id,
        "content": result.text or "(empty)",
        **({"is_error": True} if result.error else {}),
    }
