"""`OpenAIProposer`: any server that speaks chat completions with tools as the proposer, such as a local vLLM or Ollama.

Retries are `harness_sdk.policies.api`, the only layer that retries; the conversation is
`optimizers.proposers.llm.conversation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from harness_sdk.policies.api import ApiClient, ApiConfig, read_call
from harness_sdk.policies.base import PolicyError
from harness_sdk.types import ParseFailure
from optimizers.proposers.llm.conversation import Caps, Exchange, Price, Prompt, Reply, Usage, converse
from optimizers.proposers.llm.tools import TOOLS, ToolUse
from optimizers.proposers.protocol import Brief, Proposed, ProposerSetupError

_STOP: Mapping[str, Literal["tools", "end", "cut", "refused", "full"]] = {
    "tool_calls": "tools",
    "length": "cut",
    "content_filter": "refused",
}


class OpenAIProposer:
    """A model behind an OpenAI-compatible server writes the candidates.

    Attributes:
        caps: What one round may take.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        caps: Caps | None = None,
        price: Price | None = None,
        timeout: float = 600.0,
        retries: int = 4,
    ) -> None:
        """Prepares a client; nothing is sent yet. The key comes from ``OPENAI_API_KEY``; a local server needs none.

        Args:
            model: The model's name on the server.
            base_url: Where it is (``http://localhost:8000/v1``); None is OpenAI.
            caps: What one round may take.
            price: Its prices; None is free of charge, and allowed for a server of your own only.
            timeout: Seconds for one reply.
            retries: Attempts after the first, with growing pauses, where the failure may pass.

        Raises:
            ImportError: The SDK is not installed.
            ProposerSetupError: There is no key or no price for OpenAI.
        """
        if price is None and base_url is None:
            raise ProposerSetupError(f"no price is known for {model!r}, so no cap could hold; give one")
        try:
            config = ApiConfig("openai", "OPENAI_API_KEY", base_url, 1, timeout, retries)
            api = ApiClient(config, "AsyncOpenAI", None)
        except PolicyError as error:
            raise ProposerSetupError(str(error)) from None
        self.caps = caps or Caps()
        limit = "max_completion_tokens" if base_url is None else "max_tokens"
        self._model = ChatModel(model, price or Price(), api, limit)

    async def propose(self, brief: Brief) -> Proposed:
        """Writes candidates; see `optimizers.proposers.llm.conversation.converse`."""
        return await converse(self._model, brief, self.caps)


class ChatModel:
    """A `Model` behind the chat-completions protocol."""

    def __init__(self, name: str, price: Price, api: ApiClient, limit: str) -> None:
        self.name, self.price = name, price
        self._api, self._limit = api, limit

    async def reply(
        self, prompt: Prompt, exchanges: Sequence[Exchange], limit: int, lost: Callable[[Usage], None]
    ) -> Reply:
        """Makes one call; see `Model`. The protocol does not tell what a failed attempt took."""
        del lost
        fields: dict[str, Any] = {
            "model": self.name,
            "messages": messages(prompt, exchanges),
            "tools": [tool.schema() for tool in TOOLS],
            self._limit: limit,
        }

        async def call(client: Any) -> Any:
            import openai

            try:
                return await client.chat.completions.with_raw_response.create(**fields)
            except (openai.AuthenticationError, openai.PermissionDeniedError) as error:  # its words may hold the key
                raise ProposerSetupError(
                    f"{self._api.where} refused the key ({error.status_code}); check OPENAI_API_KEY"
                ) from None
            except openai.NotFoundError:
                raise ProposerSetupError(f"{self._api.where} knows no model {self.name!r}; check its name") from None

        return read(await self._api.send(call))

    async def close(self) -> None:
        """Closes the connections."""
        await self._api.close()


def read(answer: Mapping[str, Any]) -> Reply:
    """Reads a chat completion.

    Raises:
        PolicyError: It holds no message.
    """
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    if not isinstance(message, dict):
        raise PolicyError(f"the answer holds no message: {answer!r:.200}")
    stop = _STOP.get(str(choice.get("finish_reason")), "end")
    asked = [call for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    uses = tuple(_use(call, number, stop == "cut" and number == len(asked) - 1) for number, call in enumerate(asked))
    content: dict[str, Any] = {"role": "assistant", "content": str(message.get("content") or "")}
    if uses:  # arguments that cannot be read would break the chat templates of local servers
        content["tool_calls"] = [
            {
                "id": use.id,
                "type": "function",
                "function": {
                    "name": use.name or "unknown",
                    "arguments": "{}" if use.problem else call["function"]["arguments"] or "{}",
                },
            }
            for use, call in zip(uses, asked, strict=True)
        ]
    refusal = str(message.get("refusal") or "")
    if refusal:
        stop = "refused"
    return Reply(content, uses, "tools" if uses and stop == "end" else stop, refusal, _usage(answer.get("usage")))


def _use(call: Mapping[str, Any], number: int, cut: bool) -> ToolUse:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    call_id, name = str(call.get("id") or f"call_{number}"), str(function.get("name") or "")
    if cut:
        why = "the reply was cut off at its token limit in this call, so nothing was done; send it again, shorter"
        return ToolUse(call_id, name, {}, why)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return ToolUse(call_id, name, {}, f"the arguments of {name} must be JSON text")
    found = read_call(name, arguments, call_id)
    if isinstance(found, ParseFailure):
        return ToolUse(call_id, name, {}, found.reason)
    return ToolUse(call_id, name, found.arguments)


def _usage(usage: Any) -> Usage:
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = int(details.get("cached_tokens") or 0) if isinstance(details, dict) else 0
    return Usage(
        input=int(usage.get("prompt_tokens") or 0) - cached,
        cached=cached,
        output=int(usage.get("completion_tokens") or 0),
    )


def messages(prompt: Prompt, exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
    """Returns a conversation as chat messages."""
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": prompt.system},
        {"role": "user", "content": prompt.opening},
    ]
    for exchange in exchanges:
        turns.append(exchange.reply.content)
        turns += [{"role": "tool", "tool_call_id": r.id, "content": r.text or "(empty)"} for r in exchange.results]
        turns += [{"role": "user", "content": exchange.note}] if exchange.note else []
    return turns
