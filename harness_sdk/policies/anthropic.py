"""`AnthropicPolicy`: Claude through the official ``anthropic`` SDK, for evaluation.

The messages protocol gives no token ids, takes no seed, and wants roles that alternate and the system text apart;
messages are translated here. Nothing can be trained on its rollouts. Retries and errors are
`harness_sdk.policies.api`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

from harness_sdk.policies.api import ApiClient, ApiConfig, cut_at_stop, read_call
from harness_sdk.policies.base import Generation, PolicyError, PromptTooLongError, Request, Sampling
from harness_sdk.types import Completion, FinishReason, Message, ParseFailure
from whale_env.errors import InputError
from whale_env.types import ToolCall

_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "refusal": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class AnthropicPolicy:
    """A Claude model. Evaluation only.

    A refusal is a completion that stopped: the model's answer, scored as any other. Sampling settings that are not
    sent are left out with one warning; the seed has no counterpart.

    Attributes:
        model: The model's name.
        supports_training: False: there are no token ids.
    """

    supports_training = False

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        concurrency: int = 16,
        timeout: float = 120.0,
        retries: int = 4,
        sampling: bool = False,
    ) -> None:
        """Prepares a client; nothing is sent yet.

        Args:
            model: The model's name.
            base_url: Where the server is; None is Anthropic.
            api_key: The key; None reads ``ANTHROPIC_API_KEY``. It is never printed or stored.
            concurrency: Requests at a time.
            timeout: Seconds for one attempt.
            retries: Attempts after the first, with growing pauses, where the failure may pass.
            sampling: Whether temperature, top-p and top-k are sent. Current models refuse them, earlier ones take them.

        Raises:
            MissingPackageError: The SDK is not installed.
            PolicyError: There is no key.
            InputError: An argument is out of range.
        """
        config = ApiConfig("anthropic", "ANTHROPIC_API_KEY", base_url, concurrency, timeout, retries)
        self._api = ApiClient(config, "AsyncAnthropic", api_key)
        self.model = model
        self._sampling = sampling
        self._warned = False

    def __repr__(self) -> str:
        return f"AnthropicPolicy({self.model!r}) at {self._api.where}"

    def require_token_ids(self) -> None:
        """Raises `InputError`: nothing can be trained on rollouts without token ids."""
        raise InputError(
            f"{self.model} is behind an API that gives no token ids, so nothing can be trained on its rollouts; "
            "use TransformersPolicy or VLLMPolicy"
        )

    async def generate(self, request: Request) -> Generation:
        """Answers one request.

        Raises:
            PromptTooLongError: The prompt exceeds the request's or the model's limit.
            PolicyError: The server refused, or failed more often than is retried.
        """
        fields = self._fields(request)

        async def call(client: Any) -> Any:
            return await client.messages.with_raw_response.create(**fields)

        return self._generation(await self._api.send(call), request)

    async def close(self) -> None:
        """Closes the connections."""
        await self._api.close()

    def _fields(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        system, messages = translate(request.messages)
        fields: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": request.max_tokens}
        if system:
            fields["system"] = system
        if request.tools:
            fields["tools"] = [_tool(schema["function"]) for schema in request.tools]
        # The server refuses blank stop sequences; those are cut here alone, as all others are once more.
        if sequences := [text for text in request.stop if text.strip()]:
            fields["stop_sequences"] = sequences
        if self._sampling:
            # Only what differs from the server's defaults: some models take one of them at a time. In the extra body
            # because the SDK no longer names them.
            extra: dict[str, Any] = {}
            extra.update({"temperature": sampling.temperature} if sampling.temperature != 1.0 else {})
            extra.update({"top_p": sampling.top_p} if sampling.top_p != 1.0 else {})
            extra.update({"top_k": sampling.top_k} if sampling.top_k and sampling.temperature else {})
            fields["extra_body"] = extra
        left_out = bool(sampling.min_p) if self._sampling else sampling != Sampling(1.0, 0)
        if left_out and not self._warned:
            self._warned = True
            why = "the API takes no min_p" if self._sampling else "pass sampling=True for a model that takes it"
            warnings.warn(f"{sampling} is left out for {self.model}: {why}", stacklevel=3)
        return fields

    def _generation(self, answer: Mapping[str, Any], request: Request) -> Generation:
        blocks = answer.get("content")
        if not isinstance(blocks, list):
            raise PolicyError(f"{self._api.where}: the answer holds no content: {answer!r:.200}")
        usage = answer.get("usage") or {}
        kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        asked = sum(int(usage.get(kind) or 0) for kind in kinds)
        if asked > request.max_prompt_tokens:
            raise PromptTooLongError(asked, request.max_prompt_tokens)
        finish = _FINISH.get(str(answer.get("stop_reason")), "abort")
        text = ""
        calls: list[ToolCall] = []
        unread: list[ParseFailure] = []
        for number, block in enumerate(blocks):
            block = block if isinstance(block, dict) else {}
            if block.get("type") == "text":
                text += str(block.get("text") or "")
            elif block.get("type") == "tool_use":
                call_id = str(block.get("id") or f"call_{number}")
                # The server gives what it has of a call that is cut off as an object, empty or not.
                given = None if finish != "stop" and number == len(blocks) - 1 else block.get("input")
                call = read_call(block.get("name"), given, call_id, cut=given is None)
                if isinstance(call, ParseFailure):
                    text += f"\n<tool_call>{json.dumps([block.get('name'), block.get('input')])}"
                    unread.append(call)
                else:
                    calls.append(call)
        matched = answer.get("stop_sequence")
        if answer.get("stop_reason") == "stop_sequence" and isinstance(matched, str) and not text.endswith(matched):
            text += matched
        text, stopped = cut_at_stop(text, request.stop)
        tokens = int(usage.get("output_tokens") or 0)
        said = Completion(text, "stop" if stopped else finish, tuple(calls), tokens, tuple(unread), bool(calls))
        return Generation(said)


def translate(messages: list[Message]) -> tuple[str, list[dict[str, Any]]]:
    """Turns OpenAI chat messages into Anthropic ones.

    Tool results and calls become blocks where they belong together by id, else text; messages of one role that follow
    each other are merged; empty ones are left out.

    Args:
        messages: The prompt.

    Returns:
        The system text, and messages whose roles alternate.
    """
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "system":
            system.append(message["content"])
            continue
        blocks: list[dict[str, Any]] = []
        call_id = message.get("tool_call_id")
        if message["role"] == "tool" and call_id in open_calls:
            open_calls.discard(call_id)
            blocks.append({"type": "tool_result", "tool_use_id": call_id, "content": message["content"]})
        elif message["content"].strip():
            blocks.append({"type": "text", "text": message["content"]})
        if message["role"] == "assistant":
            uses = [use for call in message.get("tool_calls") or [] if (use := _tool_use(call, messages))]
            open_calls = {use["id"] for use in uses}
            blocks += uses
        role = "assistant" if message["role"] == "assistant" else "user"
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    for turn in turns:  # the server wants results before anything else the user says
        turn["content"].sort(key=lambda block: block["type"] != "tool_result" and turn["role"] == "user")
    return "\n\n".join(filter(None, system)), turns


def _tool_use(call: dict[str, Any], messages: list[Message]) -> dict[str, Any] | None:
    """Returns a call as a block, or None where no result answers it (the server refuses such calls)."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    answered = any(message.get("tool_call_id") == call.get("id") for message in messages if message["role"] == "tool")
    read = read_call(function.get("name"), function.get("arguments"), str(call.get("id")))
    if not answered or isinstance(read, ParseFailure):
        return None
    return {"type": "tool_use", "id": read.id, "name": read.name, "input": dict(read.arguments)}


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description", ""), "input_schema": schema}
