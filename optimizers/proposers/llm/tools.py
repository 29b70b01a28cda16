"""The tools of a proposer: read the archive, check a source, hand in a candidate.

A candidate counts only when validator and behaviour checks accept it and it has no score at the current weights;
otherwise the report is the tool's answer, so that the model repairs it. Arguments come from a model and are judged one
by one; nothing here raises for them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness_sdk.session import clean_text
from optimizers.proposers.llm.files import ArchiveFiles, FileError
from optimizers.proposers.protocol import Brief, Check, Proposal
from whale_env.types import ToolSpec

AXES = ("prompt", "observation", "parsing", "feedback", "history", "budget", "tools")
"""The parts of a harness that a candidate may change, one at a time."""

LIMITS = {"name": 80, "hypothesis": 2000, "changes": 4000}
"""Characters of what is said of a candidate."""

MAX_SOURCE = 256 * 1024
"""Characters of a source that are looked at; the validator's own bound is lower."""

MAX_RESULT = 30_000
"""Characters of one answer."""


def _object(required: Mapping[str, str], optional: Mapping[str, str] | None = None, **enums: list[str]) -> Any:
    properties: dict[str, Any] = {}
    for name, about in {**required, **(optional or {})}.items():
        kind = "integer" if name == "offset" else "string"
        properties[name] = {"type": kind, "description": about} | ({"enum": enums[name]} if name in enums else {})
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_WHERE = "Path relative to the archive."
_OFFSET = "Where to go on, as the last page says."

TOOLS = (
    ToolSpec(
        "list_files",
        "Lists a folder of the archive. Without a path: its top.",
        _object({}, {"path": _WHERE, "offset": _OFFSET}),
    ),
    ToolSpec(
        "read_file",
        "Reads a page of a file of the archive.",
        _object({"path": _WHERE}, {"offset": _OFFSET}),
    ),
    ToolSpec(
        "grep",
        "Searches a file, or all files below a folder, for a Python regular expression, line by line.",
        _object({"pattern": "A Python regular expression."}, {"path": _WHERE, "offset": _OFFSET}),
    ),
    ToolSpec(
        "run_check",
        "Validates a harness source and plays it against scripted replies, in a sandbox and without a model. "
        "Returns what is wrong and how to repair it, or the first prompt that it packs.",
        _object({"source": "The whole Python file."}),
    ),
    ToolSpec(
        "submit_candidate",
        "Hands in a candidate. It counts only if it passes run_check and has no score at the current weights; "
        "otherwise the answer is the report.",
        _object(
            {
                "name": "A short name.",
                "hypothesis": "What should get better, and why: name what you saw in the rollouts.",
                "axis": "The one part of a harness that it changes.",
                "changes": "What is different from the parent, in a few sentences.",
                "source": "The whole Python file.",
            },
            {"parent": "Id of the harness that it derives from. Without it: the accepted one."},
            axis=list(AXES),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A model's call of a tool.

    Attributes:
        id: The provider's id of the call.
        name: The tool.
        arguments: What it was called with.
        problem: Why the call cannot be carried out (cut off, not JSON), or empty.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to a call.

    Attributes:
        id: The call's id.
        text: What the model reads.
        error: Whether the call failed.
        candidate: What was handed in and counts.
    """

    id: str
    text: str
    error: bool = False
    candidate: Proposal | None = None


class ToolError(ValueError):
    """A call cannot be carried out; the message tells the model why."""


class Workbench:
    """Carries out the calls of one round."""

    def __init__(self, brief: Brief, check: Check) -> None:
        """Takes the round and the check that candidates have to pass."""
        self._brief, self._check = brief, check
        self._files = ArchiveFiles(brief.archive.folder)
        self._known = {
            _program(brief.archive.source(harness_id)): f"the archive's {harness_id}"
            for harness_id in sorted(brief.archive.scored_at(brief.weights_version) | {brief.incumbent})
        }
        self.candidates: list[Proposal] = []

    @property
    def full(self) -> bool:
        """Whether enough candidates count."""
        return len(self.candidates) >= self._brief.count

    async def run(self, use: ToolUse) -> ToolResult:
        """Carries out one call. What is wrong with it is its answer; a candidate in it counts once it is taken."""
        try:
            if use.problem:
                raise ToolError(use.problem)
            text, candidate = await self._answer(use.name, use.arguments)
        except (ToolError, FileError) as error:
            return ToolResult(use.id, _bounded(str(error)), error=True)
        return ToolResult(use.id, _bounded(text), candidate=candidate)

    def take(self, candidate: Proposal) -> None:
        """Counts a candidate."""
        self._known[_program(candidate.source)] = f"your candidate {candidate.name!r}"
        self.candidates.append(candidate)

    async def submit(self, said: Mapping[str, Any]) -> Proposal:
        """Judges a candidate.

        Args:
            said: ``name``, ``hypothesis``, ``axis``, ``changes``, ``source`` and perhaps ``parent``.

        Returns:
            The candidate, not counted yet.

        Raises:
            ToolError: It does not count; the message says why.
        """
        words = {name: _words(said, name, limit) for name, limit in LIMITS.items()}
        axis = _text(said, "axis")
        if axis not in AXES:
            raise ToolError(f"axis {axis!r:.80} is not one of {', '.join(AXES)}")
        parent = _text(said, "parent", self._brief.incumbent) or self._brief.incumbent
        if parent not in self._brief.archive.ids():
            raise ToolError(f"the archive holds no harness {parent!r:.80} to be the parent")
        source = _source(said)
        same = self._known.get(_program(source))
        if same is not None:
            raise ToolError(f"not counted: this is the same program as {same}; hand in something new")
        verdict = await self._check(source)
        if not verdict.ok:
            raise ToolError(f"not counted: repair it and hand it in again.\n{verdict.text}")
        traits = {"changes": words["changes"]}
        return Proposal(words["name"], source, parent, axis, words["hypothesis"], traits)

    async def _answer(self, name: str, said: Mapping[str, Any]) -> tuple[str, Proposal | None]:
        match name:
            case "list_files":
                return self._files.list_files(_text(said, "path", ""), _offset(said)), None
            case "read_file":
                return self._files.read_file(_text(said, "path"), _offset(said)), None
            case "grep":
                pattern, path = _text(said, "pattern"), _text(said, "path", "")
                return await self._files.grep(pattern, path, _offset(said)), None
            case "run_check":
                verdict = await self._check(_source(said))
                if not verdict.ok:
                    raise ToolError(verdict.text)
                return verdict.text, None
            case "submit_candidate":
                if self.full:
                    raise ToolError("not counted: there are enough candidates")
                candidate = await self.submit(said)
                count = len(self.candidates) + 1
                return f"counted: candidate {count} of {self._brief.count}", candidate
        raise ToolError(f"there is no tool {name!r:.80}; use {', '.join(tool.name for tool in TOOLS)}")


def _text(said: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = said.get(name, default)
    if not isinstance(value, str):
        raise ToolError(f"{name} must be a text, not {value!r:.80}")
    return clean_text(value)


def _words(said: Mapping[str, Any], name: str, limit: int) -> str:
    text = "".join(c if c.isprintable() else " " for c in _text(said, name)).strip()
    if not text:
        raise ToolError(f"{name} is empty")
    if len(text) > limit:
        raise ToolError(f"{name} has {len(text)} characters; the bound is {limit}")
    return text


def _offset(said: Mapping[str, Any]) -> int:
    value = said.get("offset", 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise ToolError(f"offset must be a whole number from 0, not {value!r:.80}")
    return value


def _source(said: Mapping[str, Any]) -> str:
    source = _text(said, "source")
    if len(source) > MAX_SOURCE:
        raise ToolError(f"the source has {len(source)} characters; the bound is {MAX_SOURCE}")
    return source


def _program(source: str) -> str:
    """Returns what a source says to Python: two sources that differ in comments or layout only are the same."""
    try:
        return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_RESULT else text[:MAX_RESULT] + f"\n… {len(text) - MAX_RESULT} characters left out"
