"""Which proposer a run has: the flags, and the proposer made from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optimizers.proposer import Proposer, ProposerSetupError

Kind = Literal["offline", "random", "anthropic", "openai", "command"]
Effort = Literal["", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True)
class ProposerConfig:
    """Who writes the candidates, and what a round of it may take."""

    kind: Kind = "offline"
    """offline needs no model; random draws its mechanisms without looking at scores (a control); anthropic is Claude
    (ANTHROPIC_API_KEY); openai any compatible server (OPENAI_API_KEY); command an agent's command line."""
    model: str = ""
    """Model of anthropic and openai. Empty is claude-opus-4-7 for anthropic."""
    effort: Effort = "high"
    """How much Claude thinks. Empty for models without adaptive thinking."""
    url: str = ""
    """Where the server is, such as http://localhost:8000/v1. Empty is the provider's own."""
    prices: tuple[float, ...] = ()
    """US dollars for a million tokens: in, read from the cache, written to the cache, out. Empty takes the list's."""
    command: str = ""
    """The command line, such as: my-agent --print "Do what TASK.md says"."""
    read: tuple[str, ...] = ()
    """Folders that the command may read and run besides the system's."""
    write: tuple[str, ...] = ()
    """Folders that the command may change besides its copy of the archive."""
    turns: int = 60
    """Calls of a round."""
    tokens: int = 6_000_000
    """Tokens of a round, in and out, cached ones included."""
    usd: float = 10.0
    """Dollars of a round."""
    usd_in_all: float = 100.0
    """Dollars of a run; the harness phase ends when they are spent."""
    seconds: float = 3600.0
    """Wall time of a round."""
    reply: int = 32_000
    """Tokens of one reply."""


def build(config: ProposerConfig, *, allow_uncaged: bool = False) -> Proposer:
    """Makes the proposer that the flags ask for.

    Args:
        config: The flags.
        allow_uncaged: Whether a command may run where the kernel cannot confine it.

    Raises:
        ImportError: The provider's SDK is not installed.
        ProposerSetupError: A flag is missing or cannot be used.
    """
    from optimizers.controls import RandomProposer
    from optimizers.offline_proposer import OfflineProposer
    from optimizers.proposers.anthropic import AnthropicProposer
    from optimizers.proposers.command import CommandProposer
    from optimizers.proposers.conversation import Caps, Price
    from optimizers.proposers.openai import OpenAIProposer

    if len(config.prices) not in (0, 4):
        raise ProposerSetupError(f"prices are four numbers (in, cache read, cache write, out), not {config.prices}")
    price = Price(*config.prices) if config.prices else None
    caps = Caps(config.turns, config.tokens, config.usd, config.seconds, config.reply)
    url = config.url or None
    match config.kind:
        case "offline":
            return OfflineProposer()
        case "random":
            return RandomProposer()
        case "anthropic":
            model = config.model or "claude-opus-4-7"
            return AnthropicProposer(model, effort=config.effort, caps=caps, price=price, base_url=url)
        case "openai":
            if not config.model:
                raise ProposerSetupError("the openai proposer needs the model's name on the server")
            return OpenAIProposer(config.model, base_url=url, caps=caps, price=price)
        case "command":
            read, write = (tuple(Path(name).expanduser() for name in names) for names in (config.read, config.write))
            timeout = config.seconds
            return CommandProposer(
                config.command, timeout=timeout, read=read, write=write, allow_unconfined=allow_uncaged
            )
