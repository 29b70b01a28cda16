"""`OpenAIPolicy`: any server that speaks the chat-completions protocol, through the official ``openai`` SDK.

Evaluation works with all of them. Training needs the exact token ids of prompt and completion, which vLLM gives; ask
`OpenAIPolicy.require_token_ids` before training. Retries and errors are `harness_sdk.policies.api`; a model in this
process is `TransformersPolicy` or `VLLMPolicy`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness_sdk.policies.api import ApiClient, ApiConfig, cut_at_stop, read_call
from harness_sdk.policies.base import Generation, PolicyError, PromptTooLongError, Request
from harness_sdk.types import Completion, FinishReason, ParseFailure
from whale_env.errors import InputError
from whale_env.types import ToolCall

Server = Literal["openai", "vllm", "sglang", "llama.cpp", "ollama"]


@dataclass(frozen=True, slots=True)
class ServerTraits:
    """What a kind of server takes beyond the protocol.

    Attributes:
        filters: Whether it takes ``top_k`` and ``min_p``.
        keep_stop: Fields that make it keep the stop string in the text; empty: it cannot say which one matched, so
            stop strings are not sent and the text is cut here.
        prefix: Fields that make it continue a final assistant message; empty: it cannot.
        token_ids: Whether it gives token ids.
        limit: Name of the field for the largest number of sampled tokens.
    """

    filters: bool = False
    keep_stop: Mapping[str, Any] | None = None
    prefix: Mapping[str, Any] | None = None
    token_ids: bool = False
    limit: str = "max_tokens"


SERVERS: dict[Server, ServerTraits] = {
    "openai": ServerTraits(limit="max_completion_tokens"),
    "vllm": ServerTraits(
        filters=True,
        keep_stop={"include_stop_str_in_output": True},
        prefix={"add_generation_prompt": False, "continue_final_message": True},
        token_ids=True,
    ),
    "sglang": ServerTraits(filters=True, keep_stop={"no_stop_trim": True}, prefix={"continue_final_message": True}),
    "llama.cpp": ServerTraits(filters=True),
    "ollama": ServerTraits(),
}

_FINISH: dict[str, FinishReason] = {"stop": "stop", "tool_calls": "stop", "function_call": "stop", "length": "length"}


class OpenAIPolicy:
    """A model behind an OpenAI-compatible server.

    Where the server takes no ``top_k`` or ``min_p``, they are left out and a warning says so once. A native tool call
    that cannot be read is no call: it stays in the completion's text, where it fails to parse as any other text would.

    Attributes:
        model: The model's name on the server.
        server: Kind of server.
        weights_version: Version of the weights behind the server; set it when they change.
    """

    def __init__(
        self,
        model: str,
        *,
        server: Server | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        concurrency: int = 32,
        timeout: float = 60.0,
        retries: int = 4,
    ) -> None:
        """Prepares a client; nothing is sent yet.

        Args:
            model: The model's name on the server.
            server: Kind of server; None means OpenAI itself, or, with ``base_url``, one of which nothing is known.
            base_url: Where it is (``http://localhost:8000/v1``); None is OpenAI.
            api_key: The key; None reads ``OPENAI_API_KEY``. It is never printed or stored.
            concurrency: Requests at a time.
            timeout: Seconds for one attempt; raise it for long completions.
            retries: Attempts after the first, with growing pauses, where the failure may pass.

        Raises:
            MissingPackageError: The SDK is not installed.
            PolicyError: There is no key for OpenAI.
            InputError: An argument is out of range.
        """
        if server is not None and server not in SERVERS:
            raise InputError(f"unknown server {server!r}. Use one of: {', '.join(SERVERS)}.")
        config = ApiConfig("openai", "OPENAI_API_KEY", base_url, concurrency, timeout, retries)
        self._api = ApiClient(config, "AsyncOpenAI", api_key)
        self.model = model
        self.server = server
        self.weights_version = 0
        self._traits = SERVERS[server or "openai"]
        if base_url is not None and server is None:
            self._traits = replace(self._traits, limit="max_tokens")
        self._must_have_ids = False
        self._warned = False

    def __repr__(self) -> str:
        return f"OpenAIPolicy({self.model!r}, server={self.server!r}) at {self._api.where}"

    @property
    def supports_training(self) -> bool:
        """Whether the server gives the exact token ids that training needs."""
        return self._traits.token_ids

    def require_token_ids(self) -> None:
        """Says that generations must carry token ids; one without is from now on a `PolicyError`.

        Raises:
            InputError: The server gives none.
        """
        if not self.supports_training:
            raise InputError(self._no_ids())
        self._must_have_ids = True

    async def generate(self, request: Request) -> Generation:
        """Answers one request.

        Raises:
            PromptTooLongError: The prompt exceeds the request's or the model's limit.
            PolicyError: The server refused, or failed more often than is retried.
        """
        fields = self._fields(request)

        async def call(client: Any) -> Any:
            return await client.chat.completions.with_raw_response.create(**fields)

        return self._generation(await self._api.send(call), request)

    async def close(self) -> None:
        """Closes the connections."""
        await self._api.close()

    def _fields(self, request: Request) -> dict[str, Any]:
        traits, sampling = self._traits, request.sampling
        last = request.messages[-1]
        prefixed = last["role"] == "assistant" and bool(last["content"]) and not last.get("tool_calls")
        empty = last["role"] == "assistant" and not last["content"] and not last.get("tool_calls")
        messages = request.messages[:-1] if empty else request.messages  # an empty prefix is none
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed % 2**31,
            traits.limit: request.max_tokens,
        }
        # Past the SDK's recursive copy of its arguments, which takes most of a short call's time on long prompts.
        extra: dict[str, Any] = {"messages": messages}
        if request.tools:
            extra["tools"] = request.tools
        if request.stop and traits.keep_stop:
            fields["stop"] = list(request.stop)
            extra.update(traits.keep_stop)
        if traits.filters:
            # A server's defaults come from the model's own generation settings: 0 must be said.
            extra.update(top_k=sampling.top_k or self._all_tokens(), min_p=sampling.min_p)
        elif sampling.temperature and (sampling.top_k or sampling.min_p) and not self._warned:
            self._warned = True
            warnings.warn(f"{self._api.where} takes no top_k or min_p; sampling without them", stacklevel=3)
        if prefixed:
            if traits.prefix is None:
                raise PolicyError(
                    f"{self._api.where} cannot continue a final assistant message; end the prompt with another role, "
                    "or serve the model with vLLM and pass server='vllm'"
                )
            extra.update(traits.prefix)
        if traits.token_ids:
            fields["logprobs"] = True
            extra["return_token_ids"] = True
        return {**fields, "extra_body": extra}

    def _all_tokens(self) -> int:
        return 0 if self.server == "llama.cpp" else -1

    def _generation(self, answer: Mapping[str, Any], request: Request) -> Generation:
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise PolicyError(f"{self._api.where}: the answer holds no message: {answer!r:.200}")
        usage = answer.get("usage") or {}
        prompt_ids = _whole(answer.get("prompt_token_ids"))
        token_ids = _whole(choice.get("token_ids"))
        if self._must_have_ids and not (prompt_ids and token_ids):
            raise PolicyError(self._no_ids())
        asked = len(prompt_ids) or int(usage.get("prompt_tokens") or 0)
        if asked > request.max_prompt_tokens:
            raise PromptTooLongError(asked, request.max_prompt_tokens)

        finish = _FINISH.get(str(choice.get("finish_reason")), "abort")
        calls, broken, unread = _calls(message.get("tool_calls"), cut=finish != "stop")
        text = "\n".join(filter(None, [_text(message.get("content")), *broken]))
        matched = choice.get("stop_reason", choice.get("matched_stop"))
        if isinstance(matched, str) and matched in request.stop and not text.endswith(matched):
            text += matched
        text, stopped = cut_at_stop(text, request.stop)
        tokens = len(token_ids) or int(usage.get("completion_tokens") or 0)
        completion = Completion(text, "stop" if stopped else finish, calls, tokens, unread, structured=bool(calls))
        if not prompt_ids or not token_ids:
            return Generation(completion, weights_version=self.weights_version)
        logprobs = _logprobs(choice.get("logprobs"))
        if len(logprobs) != len(token_ids):
            raise PolicyError(f"{self._api.where}: {len(token_ids)} token ids but {len(logprobs)} log-probabilities")
        return Generation(completion, "", prompt_ids, token_ids, logprobs, self.weights_version)

    def _no_ids(self) -> str:
        return (
            f"{self._api.where} gives no token ids, so nothing can be trained on its rollouts; serve {self.model} with "
            "vLLM 0.10.2 or later and pass server='vllm', or use VLLMPolicy or TransformersPolicy"
        )


def _whole(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) and all(type(item) is int for item in value) else ()


def _text(content: Any) -> str:
    if isinstance(content, list):  # parts
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _calls(value: Any, *, cut: bool) -> tuple[tuple[ToolCall, ...], list[str], tuple[ParseFailure, ...]]:
    """Returns the calls that can be read, with ids of their own, and of the others the text and what is wrong."""
    calls: list[ToolCall] = []
    broken: list[str] = []
    unread: list[ParseFailure] = []
    seen: set[str] = set()
    items = value if isinstance(value, list) else []
    for number, item in enumerate(items):
        item = item if isinstance(item, dict) else {}
        function = item.get("function")
        function = function if isinstance(function, dict) else {}
        given = item.get("id")
        call_id = given if isinstance(given, str) and given and given not in seen else f"call_{number}"
        seen.add(call_id)
        call = read_call(function.get("name"), function.get("arguments"), call_id, cut=cut and number == len(items) - 1)
        if isinstance(call, ParseFailure):
            broken.append(f'<tool_call>{{"name": "{function.get("name")}", "arguments": {function.get("arguments")}}}')
            unread.append(call)
        else:
            calls.append(call)
    return tuple(calls), broken, tuple(unread)


def _logprobs(value: Any) -> tuple[float, ...]:
    content = value.get("content") if isinstance(value, dict) else None
    return tuple(float(item["logprob"]) for item in content or [])
