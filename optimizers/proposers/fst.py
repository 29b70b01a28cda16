"""Prompt-only search (FST): harness search restricted to the prompt texts of h0.

`same_but_prompts` decides whether a candidate is FST, and `FSTProposer` holds any proposer to it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from optimizers.proposers.protocol import Brief, Check, Proposal, Proposed, Proposer, Verdict

PROMPTS = ("system", "instructions")
"""Prompt attributes where a harness declares none (``Harness.prompt_attributes``)."""


MOST_DIFFERENCES = 8


def prompt_attributes(source: str) -> tuple[str, ...]:
    """Returns the prompt attributes that a harness's source declares, or the usual ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and assigned_name(node) == "prompt_attributes":
            try:
                names = ast.literal_eval(node.value)
            except ValueError:
                break
            return tuple(str(name) for name in names)
    return PROMPTS


def same_but_prompts(h0_source: str, candidate_source: str, attributes: Sequence[str] = PROMPTS) -> list[str]:
    """Returns how a candidate differs from h0, but for string constants of prompt attributes.

    Both sources are compared as syntax trees, so layout and comments do not count; names, docstrings and everything
    that is computed do. A prompt attribute is an assignment in a class body.

    Args:
        h0_source: Source of the starting harness.
        candidate_source: Source of the candidate.
        attributes: Names of the prompt attributes.

    Returns:
        One line per difference, at most eight; empty if the candidate is FST. A source that is no Python differs.
    """
    trees = []
    for what, source in (("h0", h0_source), ("the candidate", candidate_source)):
        try:
            trees.append(_blanked(ast.parse(source), attributes))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return [f"{what} is not Python: {error}"]
    found: list[str] = []
    try:
        _differences(trees[0], trees[1], "module", found)
    except RecursionError:
        return ["the candidate is nested too deeply to compare"]
    return found[:MOST_DIFFERENCES]


def assigned_name(node: ast.stmt) -> str | None:
    """Returns the one plain name that a statement assigns to, or None."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None


def _blanked(tree: ast.Module, attributes: Sequence[str]) -> ast.Module:
    """Empties the string constants of prompt attributes."""
    for node in ast.walk(tree):
        for statement in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(statement, ast.Assign | ast.AnnAssign) and assigned_name(statement) in attributes:
                for part in ast.walk(statement.value) if statement.value else ():
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        part.value, part.kind = "", None
    return tree


def _differences(a: object, b: object, where: str, found: list[str]) -> None:
    if len(found) >= MOST_DIFFERENCES:
        return
    if type(a) is not type(b):
        found.append(f"{where}: {_told(a)} became {_told(b)}")
    elif isinstance(a, ast.AST):
        name = getattr(a, "name", None) or (assigned_name(a) if isinstance(a, ast.stmt) else None)
        line = f"{where}, {type(a).__name__} {name}" if isinstance(a, ast.stmt) and name else where
        for field in a._fields:
            _differences(getattr(a, field, None), getattr(b, field, None), line, found)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            found.append(f"{where}: {len(a)} parts became {len(b)}")
            return
        for one, other in zip(a, b, strict=True):
            _differences(one, other, where, found)
    elif a != b:
        found.append(f"{where}: {_told(a)} became {_told(b)}")


def _told(part: object) -> str:
    text = ast.unparse(part) if isinstance(part, ast.AST) else repr(part)
    return text if len(text) <= 60 else f"{text[:57]}..."


class FSTProposer:
    """Holds a proposer to prompt-only search.

    The proposer is told so, its check enforces it, and what is not FST all the same is dropped and said in
    ``Proposed.ended``.
    """

    def __init__(self, proposer: Proposer, h0_source: str) -> None:
        """Wraps a proposer.

        Args:
            proposer: Any proposer.
            h0_source: Source of the starting harness. Its ``prompt_attributes`` may change.
        """
        self._proposer, self._h0 = proposer, h0_source
        self._attributes = prompt_attributes(h0_source)

    async def propose(self, brief: Brief) -> Proposed:
        """Returns those of the proposer's candidates that differ from h0 in prompt texts only."""
        check = prompts_only(brief.check, self._h0, self._attributes) if brief.check else None
        proposed = await self._proposer.propose(replace(brief, check=check, restriction=self._restriction()))
        kept: list[Proposal] = []
        notes = [proposed.ended] if proposed.ended else []
        for proposal in proposed.candidates:
            found = same_but_prompts(self._h0, proposal.source, self._attributes)
            if found:
                notes.append(f"{proposal.name} is not prompt-only: {'; '.join(found)}")
            else:
                kept.append(proposal)
        return replace(proposed, candidates=tuple(kept), ended="; ".join(notes))

    def _restriction(self) -> str:
        return (
            "Only prompts may change in this search. A candidate is the starting harness, below, with other text in "
            f"the string constants of these class attributes: {', '.join(self._attributes)}. All else must stay, the "
            "class name, docstrings, limits and methods too; the check refuses any other difference. It begins as:\n"
            f"```python\n{self._h0}\n```"
        )


def prompts_only(check: Check, h0_source: str, attributes: Sequence[str]) -> Check:
    """Returns a check that also refuses what differs from h0 in more than prompt texts.

    Args:
        check: The check of any candidate.
        h0_source: Source of the starting harness.
        attributes: Names of its prompt attributes.
    """

    async def checked(source: str) -> Verdict:
        if found := same_but_prompts(h0_source, source, attributes):
            lines = "".join(f"\n- {line}" for line in found)
            return Verdict(
                False, f"only the text of {', '.join(attributes)} may differ from the starting harness:{lines}"
            )
        return await check(source)

    return checked
