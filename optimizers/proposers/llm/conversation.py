"""One conversation with a model that proposes: call it, carry out its tool calls, call it again, up to a cap.

Every finished call is journaled, so that a killed run goes on in mid-conversation without paying a call again. What
was spent is counted for failed attempts too. A cap, a refusal or a server that fails ends the conversation, and what
counts until then is handed in. How a provider is spoken to is the business of a `Model`; tools are
`optimizers.proposers.llm.tools`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol

from harness_sdk.policies.base import PolicyError, PromptTooLongError
from harness_sdk.session import HarnessError, checked_data
from optimizers.proposers.llm import briefing
from optimizers.proposers.llm.journal import Journal
from optimizers.proposers.llm.tools import ToolResult, ToolUse, Workbench
from optimizers.proposers.protocol import Brief, Proposal, Proposed
from optimizers.record.ledger import ProposerCost

SMALLEST_REPLY = 1000
"""Tokens; a call that can afford less is not made."""
LARGEST_REPLY = 2_000_000
"""Characters; a larger reply ends the conversation."""
BYTES_PER_TOKEN = 3
"""To guess the length of what the provider has not counted yet, on the high side."""
NUDGES = 2
"""Replies in a row without a tool call that are answered."""

NUDGE = "You called no tool. Hand candidates in with submit_candidate; the round ends if you call nothing again."
CUT_OFF = "Your reply was cut off at its token limit. Go on in smaller steps, with a tool call."


@dataclass(frozen=True, slots=True)
class Caps:
    """What one conversation may take. The first to be reached ends it.

    Attributes:
        turns: Calls.
        tokens: Tokens in and out, cached ones included.
        usd: Money. A call that could exceed it is not made.
        seconds: Wall time, without the time that a killed run lay still.
        reply: Tokens of one reply.
    """

    turns: int = 60
    tokens: int = 6_000_000
    usd: float = 10.0
    seconds: float = 3600.0
    reply: int = 32_000

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ValueError(f"the cap on {each.name} must be more than 0, not {getattr(self, each.name)!r}")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call.

    Attributes:
        input: In, not cached.
        cached: In, read from the cache.
        written: In, written to the cache.
        output: Out.
    """

    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0

    @property
    def prompt(self) -> int:
        """All tokens in."""
        return self.input + self.cached + self.written


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens, in the order of `Usage`."""

    input: float = 0.0
    cached: float = 0.0
    written: float = 0.0
    output: float = 0.0

    def of(self, usage: Usage) -> float:
        """Returns what a call costs."""
        parts = ((self.input, usage.input), (self.cached, usage.cached), (self.written, usage.written))
        return (sum(price * tokens for price, tokens in parts) + self.output * usage.output) / 1e6


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a conversation begins with.

    Attributes:
        system: What holds in every round.
        opening: This round's task.
    """

    system: str
    opening: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered.

    Attributes:
        content: The provider's own JSON, to be sent back as it is.
        uses: The tool calls in it.
        stop: ``tools`` or ``end`` as the model wanted; ``cut``: the token limit; ``refused``; ``full``: the context.
        why: Why it refused.
        usage: What it took.
    """

    content: Any
    uses: tuple[ToolUse, ...]
    stop: Literal["tools", "end", "cut", "refused", "full"]
    why: str = ""
    usage: Usage = field(default_factory=Usage)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Reply:
        """Rebuilds a reply from `dataclasses.asdict`."""
        uses = tuple(ToolUse(**use) for use in data["uses"])
        return cls(**{**data, "uses": uses, "usage": Usage(**data["usage"])})


@dataclass(slots=True)
class Exchange:
    """A reply and what it was answered with: results of its calls, in order, or a note."""

    reply: Reply
    results: list[ToolResult] = field(default_factory=list)
    note: str = ""

    @property
    def answered(self) -> bool:
        """Whether nothing is open."""
        return bool(self.note) if not self.reply.uses else len(self.results) == len(self.reply.uses)


class Model(Protocol):
    """A provider's model."""

    name: str
    price: Price

    async def reply(
        self, prompt: Prompt, exchanges: Sequence[Exchange], limit: int, lost: Callable[[Usage], None]
    ) -> Reply:
        """Makes one call.

        Args:
            prompt: What the conversation begins with.
            exchanges: All that followed.
            limit: Tokens of the reply.
            lost: Told what a failed attempt took.

        Raises:
            PolicyError: The server refused, or failed more often than is retried.
            ProposerSetupError: It will never work as it is set up.
        """
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


async def converse(model: Model, brief: Brief, caps: Caps) -> Proposed:
    """Has a model propose, from the journal on if the round has begun before.

    Args:
        model: The model.
        brief: The round; with ``check`` and ``folder``.
        caps: What it may take.

    Returns:
        The candidates that count, all that was spent in this round, and why it ended.

    Raises:
        ProposerSetupError: The model cannot be reached as it is set up. What was said so far is kept.
    """
    if brief.check is None or brief.folder is None:
        raise ValueError("a proposer that asks a model needs brief.check and brief.folder")
    journal = Journal(brief.folder / "conversation.ndjson")
    talk = _Conversation(model, Workbench(brief, brief.check), caps, brief.usd_left, journal)
    try:
        ended = await talk.run(brief)
    finally:
        await model.close()
    return Proposed(tuple(talk.candidates), talk.cost, ended)


class _Conversation:
    def __init__(self, model: Model, bench: Workbench, caps: Caps, usd_left: float, journal: Journal) -> None:
        self._model, self._bench, self._caps, self._journal = model, bench, caps, journal
        self._usd_cap = min(caps.usd, usd_left)
        self._prompt = Prompt("", "")
        self._exchanges: list[Exchange] = []
        self._spent: list[Usage] = []
        self._seconds, self._ended = 0.0, ""
        for record in journal.records:
            self._apply(record)
        self._mark = time.monotonic()

    @property
    def candidates(self) -> list[Proposal]:
        return self._bench.candidates

    @property
    def cost(self) -> ProposerCost:
        return ProposerCost(
            conversations=1,
            input_tokens=sum(usage.input + usage.written for usage in self._spent),
            cached_tokens=sum(usage.cached for usage in self._spent),
            output_tokens=sum(usage.output for usage in self._spent),
            usd=sum(self._model.price.of(usage) for usage in self._spent),
            seconds=self._seconds,
        )

    async def run(self, brief: Brief) -> str:
        if not self._journal.records:
            prompt = Prompt(briefing.system(), briefing.opening(brief, self._caps.turns))
            self._write("begin", model=self._model.name, prompt=asdict(prompt))
        if not self._ended:
            self._write("end", why=await self._talk())
        return self._ended

    async def _talk(self) -> str:
        try:
            async with asyncio.timeout(max(self._caps.seconds - self._seconds, 0.0)) as limit:
                while True:
                    if over := await self._answer() or self._over():
                        return over
                    room = self._room()
                    if isinstance(room, str):
                        return room
                    await self._call(room)
        except TimeoutError:
            if not limit.expired():
                raise
            return f"the wall time of {self._caps.seconds:g} s is over"
        except (PolicyError, PromptTooLongError) as error:
            return f"the server failed: {error}"

    async def _call(self, limit: int) -> None:
        def lost(usage: Usage) -> None:
            self._write("lost", usage=asdict(usage))

        reply = await self._model.reply(self._prompt, self._exchanges, limit, lost)
        try:  # lone surrogates and endless numbers can be read, but not sent back
            data = checked_data("reply", asdict(reply))
        except HarnessError as error:
            data = asdict(Reply("", (), "refused", f"the reply is not JSON data: {error}", reply.usage))
        if len(str(data["content"])) > LARGEST_REPLY:
            data = asdict(Reply("", (), "refused", f"the reply is over {LARGEST_REPLY} characters", reply.usage))
        self._write("reply", reply=data)

    async def _answer(self) -> str:
        """Answers the last reply; returns why the conversation is over, if it is."""
        if not self._exchanges:
            return ""
        last = self._exchanges[-1]
        if last.reply.stop == "refused":
            return f"the model refused: {last.reply.why or 'no reason given'}"
        if last.reply.stop == "full":
            return "the model's context is full"
        while not last.answered:
            if not last.reply.uses:
                if self._idle() > NUDGES:
                    return "the model stopped calling tools"
                self._write("note", text=CUT_OFF if last.reply.stop == "cut" else NUDGE)
                continue
            result = await self._bench.run(last.reply.uses[len(last.results)])
            self._write("result", result=asdict(result))
            if self._bench.full:
                break
        return ""

    def _idle(self) -> int:
        """Counts the replies without a tool call at the end."""
        count = 0
        for exchange in reversed(self._exchanges):
            if exchange.reply.uses:
                break
            count += 1
        return count

    def _over(self) -> str:
        count = len(self.candidates)
        return f"{count} candidate{'s' if count != 1 else ''} handed in" if self._bench.full else ""

    def _room(self) -> int | str:
        """Returns how many tokens the next reply may have, or which cap forbids it."""
        caps, price = self._caps, self._model.price
        if len(self._exchanges) >= caps.turns:
            return f"the cap of {caps.turns} turns is reached"
        prompt = self._expected()
        tokens = caps.tokens - sum(usage.prompt + usage.output for usage in self._spent) - prompt
        if tokens < SMALLEST_REPLY:
            return f"the cap of {caps.tokens:,} tokens is reached"
        usd = self._usd_cap - self.cost.usd - prompt * max(price.input, price.written) / 1e6
        affordable = usd / price.output * 1e6 if price.output else math.inf if usd >= 0 else 0.0
        if affordable < SMALLEST_REPLY:
            return f"the cap of ${self._usd_cap:.2f} is reached"
        return int(min(caps.reply, tokens, affordable))

    def _expected(self) -> int:
        """Guesses the length of the next prompt, on the high side."""
        if not self._exchanges:
            text = self._prompt.system + self._prompt.opening
            return len(text.encode()) // BYTES_PER_TOKEN + 2000
        last = self._exchanges[-1]
        new = last.note + "".join(result.text for result in last.results)
        return last.reply.usage.prompt + last.reply.usage.output + len(new.encode()) // BYTES_PER_TOKEN + 100

    def _write(self, kind: str, **data: Any) -> None:
        now = time.monotonic()
        record = {"kind": kind, "seconds": now - self._mark, **data}
        self._mark = now
        self._journal.append(record)
        self._apply(record)

    def _apply(self, record: dict[str, Any]) -> None:
        """Takes in a record, fresh or from the journal: the one place where a conversation changes."""
        self._seconds += record["seconds"]
        match record["kind"]:
            case "begin":
                self._prompt = Prompt(**record["prompt"])
            case "reply":
                reply = Reply.from_json(record["reply"])
                self._exchanges.append(Exchange(reply))
                self._spent.append(reply.usage)
            case "lost":
                self._spent.append(Usage(**record["usage"]))
            case "note":
                self._exchanges[-1].note = record["text"]
            case "result":
                data = record["result"]
                candidate = Proposal(**data["candidate"]) if data["candidate"] else None
                if candidate is not None:
                    self._bench.take(candidate)
                self._exchanges[-1].results.append(ToolResult(**{**data, "candidate": candidate}))
            case "end":
                self._ended = record["why"]
