"""What a check found: findings, and how they read."""

from __future__ import annotations

from dataclasses import dataclass

from harness_sdk.floor import Floor
from harness_sdk.types import Message


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with how a harness behaves.

    Attributes:
        kind: ``hook-error``, ``nondeterministic``, ``answers-itself``, ``violation``, ``cannot-act``,
            ``too-slow`` or ``prompt-too-long``.
        policy: The scripted policies it was playing against.
        message: What happened, and the fix.
    """

    kind: str
    policy: str
    message: str

    def __str__(self) -> str:
        return f"[{self.kind}] against {self.policy}: {self.message}"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a harness played.

    Attributes:
        findings: What is wrong; empty means sound.
        prompt: The first prompt it packed, for a person or a proposer to read.
        offered: Names of the tool schemas that the model is offered natively; None if they were never asked for.
        acted: Whether any call of the environment was of a tool that is there, with arguments that fit.
        floor: What it earns with policies that know nothing; None if it broke before that was measured.
    """

    findings: tuple[Finding, ...]
    prompt: tuple[Message, ...]
    offered: tuple[str, ...] | None = None
    acted: bool = True
    floor: Floor | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings] or ["sound"]
        if not self.findings and not self.acted:
            lines.append("note: no scripted reply led it to call a tool, so that it can act was not seen")
        if self.prompt:
            lines.append("the first prompt it packs:")
            lines += [f"  {message['role']}: {message['content']}" for message in self.prompt]
        if self.floor is not None:
            lines.append(str(self.floor))
        if self.offered is not None:
            lines.append(f"tools that the model is offered natively: {', '.join(self.offered) or 'none'}")
        return "\n".join(lines)
