"""`ChatEncoder`: chat messages to exact token ids and sampled ids back to a completion, for every in-process backend.

Three promises: what the model wrote goes back in as the ids it wrote (continued turns), control tokens that occur in
message text stay text, and a template that rewrites the history makes the prompt a new one (a fork), never a wrong
one. Sampling, batching and weights are the backends'.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from harness_sdk import toolcalls
from harness_sdk.policies.base import Generation, PromptRefusedError, PromptTooLongError, Request
from harness_sdk.types import Completion, FinishReason, Message, ParseFailure, ToolSchema
from whale_env.types import ToolCall, ToolSpec
from whale_env.wording import first_line

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For models that ship no chat template."""

_MARK = "\ue000"
"""Encloses the number of a control token inside message text while the template is rendered (private use)."""
_HIDDEN = re.compile(f"{_MARK}([0-9]+){_MARK}")


class ChatEncoder:
    """Encodes prompts for one tokenizer and reads what was sampled.

    Attributes:
        tokenizer: A tokenizer of transformers.
        end_ids: Ids that end a completion.
        dialect: How the chat template writes tool calls, or None where it has no known way.
    """

    def __init__(self, tokenizer: Any, end_ids: Iterable[int | None], thinking: bool | None = None) -> None:
        """Takes a tokenizer.

        Args:
            tokenizer: A tokenizer of transformers; one without a chat template gets a plain one.
            end_ids: Ids that end a completion.
            thinking: What the chat template is told as ``enable_thinking``; None tells it nothing.
        """
        if not tokenizer.chat_template:
            tokenizer.chat_template = PLAIN_TEMPLATE
        self.tokenizer = tokenizer
        self.end_ids = frozenset(end for end in end_ids if end is not None)
        self.dialect = _dialect(str(tokenizer.chat_template))
        self._shows_tools = "tools" in str(tokenizer.chat_template)
        self._asked = {} if thinking is None else {"enable_thinking": thinking}
        self._warned = False
        added = tokenizer.added_tokens_decoder.values()
        controls = {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)
        # The mark itself is last: text that happens to hold it is written as a mark, too.
        self._controls = [*sorted(filter(None, controls), key=lambda token: (-len(token), token)), _MARK]
        self._numbers = {token: number for number, token in enumerate(self._controls)}
        self._control = re.compile("|".join(map(re.escape, self._controls)))

    def encode(
        self, messages: list[Message], tools: list[ToolSchema], previous: Generation | None = None
    ) -> tuple[str, tuple[int, ...]]:
        """Turns a prompt into text and exact ids.

        When the prompt continues the episode's last one, the earlier ids are kept and only the rest is tokenised.

        Args:
            messages: The prompt; a final assistant message is continued.
            tools: Schemas for the chat template.
            previous: The episode's last generation.

        Returns:
            The rendered prompt (private-use marks stand for control tokens that are text) and its ids.

        Raises:
            PromptRefusedError: The chat template refuses the messages.
        """
        text = self._render(messages, tools)
        if previous is not None and previous.token_ids:
            seen = previous.prompt_text + self._hide(previous.completion.text)
            if text.startswith(seen):
                rest = text[len(seen) :]
                ids = previous.prompt_ids + previous.token_ids
                if previous.token_ids[-1] not in self.end_ids:
                    return text, ids + self._tokens(rest)
                end = self.tokenizer.decode([previous.token_ids[-1]])
                if rest.startswith(end):
                    return text, ids + self._tokens(rest[len(end) :])
        return text, self._tokens(text)

    def encode_request(self, request: Request, context: int) -> tuple[str, tuple[int, ...]]:
        """As `encode`, within the request's limit and the model's context (one token is left to sample).

        Raises:
            PromptTooLongError: The prompt exceeds a limit.
            PromptRefusedError: The chat template refuses the messages.
        """
        text, ids = self.encode(request.messages, request.tools, request.previous)
        limit = min(request.max_prompt_tokens, context - 1)
        if len(ids) > limit:
            raise PromptTooLongError(len(ids), limit)
        return text, ids

    def completion(self, ids: Iterable[int], finish_reason: FinishReason, tools: list[ToolSchema]) -> Completion:
        """Reads sampled ids: their text, and the tool calls in it if tools were shown natively."""
        ids = list(ids)
        text = self.text(ids)
        found = self._calls(text, tools)
        calls = tuple(item for item in found if isinstance(item, ToolCall))
        unread = tuple(item for item in found if isinstance(item, ParseFailure))
        return Completion(text, finish_reason, calls, len(ids), unread)

    def text(self, ids: Iterable[int]) -> str:
        """Returns the text of ids, control tokens left out."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def stopper(self, stop: tuple[str, ...]) -> Callable[[list[int]], bool] | None:
        """Returns a test whether the latest id completed one of the stop strings; None without any."""
        if not stop:
            return None
        longest = max(map(len, stop))

        def finished(ids: list[int]) -> bool:
            tail = self.text(ids[-(longest + 8) :])
            return any(text in tail for text in stop)

        return finished

    def _calls(self, text: str, tools: list[ToolSchema]) -> list[ToolCall | ParseFailure]:
        if not tools or self.dialect is None:
            return []
        return toolcalls.parse(text, self.dialect, [tool_spec(tool) for tool in tools])

    def _render(self, messages: list[Message], tools: list[ToolSchema]) -> str:
        if tools and not self._shows_tools and not self._warned:
            self._warned = True
            names = ", ".join(schema["function"]["name"] for schema in tools)
            warnings.warn(
                f"this model's chat template shows no tools: it is not told of {names}. Describe them in the prompt, "
                "and return [] from Harness.tools",
                stacklevel=2,
            )
        if messages[-1]["role"] == "assistant" and not messages[-1]["content"] and not messages[-1].get("tool_calls"):
            messages = messages[:-1]  # an empty prefix is none
        prefixed = bool(messages) and messages[-1]["role"] == "assistant"
        try:
            rendered: str = self.tokenizer.apply_chat_template(
                [self._safe(message) for message in messages],
                tools=self._hidden(list(tools)) or None,
                tokenize=False,
                add_generation_prompt=not prefixed,
                continue_final_message=prefixed,
                **self._asked,
            )
        except Exception as error:  # a template is a program of the model's: it may raise anything
            reason = first_line(error)
            raise PromptRefusedError(f"the model's chat template refuses these messages: {reason}") from error
        return rendered

    def _safe(self, message: Message) -> dict[str, Any]:
        safe: dict[str, Any] = {**message, "content": self._hide(message["content"])}
        if "tool_calls" in message:
            safe["tool_calls"] = [self._hidden(_with_object(call)) for call in message["tool_calls"]]
        return safe

    def _hide(self, text: str) -> str:
        return self._control.sub(lambda found: f"{_MARK}{self._numbers[found[0]]}{_MARK}", text)

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._hide(value)
        if isinstance(value, dict):
            return {self._hidden(key): self._hidden(item) for key, item in value.items()}
        return [self._hidden(item) for item in value] if isinstance(value, list) else value

    def _tokens(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for index, piece in enumerate(_HIDDEN.split(text)):
            hidden = index % 2 == 1
            plain = self._controls[int(piece)] if hidden else piece
            if plain:
                ids += self.tokenizer(plain, add_special_tokens=False, split_special_tokens=hidden).input_ids
        return tuple(ids)


def tool_spec(schema: ToolSchema) -> ToolSpec:
    """Returns the tool that an OpenAI function schema describes."""
    function = schema["function"]
    return ToolSpec(function["name"], function.get("description", ""), function.get("parameters", {}))


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    """OpenAI writes a call's arguments as JSON text; chat templates expect the object."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str):
        return call
    try:
        value = json.loads(arguments)
    except ValueError:
        return call
    return {**call, "function": {**call["function"], "arguments": value}} if isinstance(value, dict) else call


def _dialect(template: str) -> toolcalls.Protocol | None:
    if "<function=" in template:
        return "qwen_xml"
    return "hermes" if "<tool_call>" in template else None
