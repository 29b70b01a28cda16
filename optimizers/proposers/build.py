"""Which proposer a run has: the flags, and the proposer made from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optimizers.config import ProposerConfig
from optimizers.proposers.protocol import Proposer, ProposerSetupError


def build(config: ProposerConfig, *, hidden: Sequence[Path] = (), allow_uncaged: bool = False) -> Proposer:
    """Makes the proposer that the flags ask for.

    Args:
        config: The flags.
        hidden: What holds answers, such as the environment's data; a command cannot read it.
        allow_uncaged: Whether a command may run where the kernel cannot confine it.

    Raises:
        ImportError: The provider's SDK is not installed.
        ProposerSetupError: A flag is missing or cannot be used.
    """
    from optimizers.proposers.llm.anthropic import AnthropicProposer
    from optimizers.proposers.llm.command import CommandProposer
    from optimizers.proposers.llm.conversation import Caps, Price
    from optimizers.proposers.llm.openai import OpenAIProposer
    from optimizers.proposers.offline.chance import RandomProposer
    from optimizers.proposers.offline.proposer import OfflineProposer

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
            return CommandProposer(
                config.command,
                timeout=config.seconds,
                read=read,
                write=write,
                hidden=hidden,
                allow_unconfined=allow_uncaged,
            )
