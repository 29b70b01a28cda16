"""Recipes: harnesses as a few independent decisions, and the source text that a recipe stands for.

The offline proposer thinks in recipes and hands out source. A recipe knows nothing of any domain: it sees the names
and shapes of an observation's data and the tools, and writes an ordinary, readable `Harness` subclass.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import indent
from typing import Any, Literal

from whale_env.types import Observation, ToolSpec

SHORT = 24
"""Characters of a fact that is worth showing in a short view."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a domain's observations and tools look like.

    Attributes:
        tool: Name of the committing tool.
        argument: Its string argument.
        choices: Name of the data field that lists what can be chosen, or None.
        notations: Keys under which each choice is written.
        longest: Characters of the longest choice.
        marked: The notation in which most choices carry a mark besides letters and digits, or "" if none do.
        facts: Names of short text fields.
    """

    tool: str
    argument: str
    choices: str | None = None
    notations: tuple[str, ...] = ()
    longest: int = 0
    marked: str = ""
    facts: tuple[str, ...] = ()

    @classmethod
    def of(cls, tools: Sequence[ToolSpec], observations: Sequence[Observation]) -> Facts:
        """Reads the shapes off some observations."""
        tool = next((tool for tool in tools if tool.commits), tools[0])
        properties: Any = tool.parameters.get("properties", {})
        strings = [name for name, schema in properties.items() if schema.get("type") == "string"]
        argument = strings[0] if strings else next(iter(properties), "")
        found: dict[str, tuple[str, ...]] = {}
        facts: list[str] = []
        for name in observations[0].data if observations else ():
            values = [observation.data.get(name) for observation in observations]
            if all(isinstance(value, str) and value and len(value) <= SHORT for value in values):
                facts.append(name)
            keys = [_notations(value) for value in values]
            if all(keys):
                found[name] = tuple(sorted(set.intersection(*map(set, keys)), key=keys[0].index))
        if not found:
            return cls(tool.name, argument, facts=tuple(facts))
        choices = max(found, key=lambda name: sum(len(o.data[name]) for o in observations))
        items = [item for o in observations for item in o.data[choices]]
        longest = max(len(item[key]) for item in items for key in found[choices])
        marks = {key: sum(not item[key].isalnum() for item in items) for key in found[choices]}
        marked = max(marks, key=lambda key: marks[key]) if any(marks.values()) else ""
        return cls(tool.name, argument, choices, found[choices], longest, marked, tuple(facts))


def _notations(value: Any) -> list[str]:
    """Returns the keys of a list of records of short texts, or nothing if it is none."""
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, Mapping) for item in value):
        return []
    first = value[0]
    return [
        key for key in first if all(isinstance(item.get(key), str) and 0 < len(item[key]) <= SHORT for item in value)
    ]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The decisions behind one harness.

    Attributes:
        system: System text.
        instructions: What stands after the observation.
        view: ``full`` shows the observation's text; otherwise the notation in which choices are listed.
        order: ``given``, or ``marked``: choices with a rare mark first.
        reading: ``tags``, or ``choices``: also a choice as a bare word, in any notation.
        opened: Whether the reply is begun for the model, with the opening tag.
        retry: ``explain`` shows the failed reply and what was wrong; ``fresh`` asks again as if for the first time.
        max_turns: Model calls.
        max_failures: Failures allowed.
        max_tokens_per_turn: Sampled tokens in a call.
    """

    system: str = ""
    instructions: str = ""
    view: str = "full"
    order: Literal["given", "marked"] = "given"
    reading: Literal["tags", "choices"] = "tags"
    opened: bool = False
    retry: Literal["explain", "fresh"] = "explain"
    max_turns: int = 16
    max_failures: int = 2
    max_tokens_per_turn: int = 64
    mechanisms: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Returns the recipe as JSON data."""
        return {**asdict(self), "mechanisms": list(self.mechanisms)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """Rebuilds a recipe from `to_json`."""
        return cls(**{**data, "mechanisms": tuple(data["mechanisms"])})

    @classmethod
    def read(cls, source: str) -> Recipe:
        """Reads the texts and limits that a harness's source declares; what it computes is not seen.

        Args:
            source: Source of any harness.
        """
        values: dict[str, Any] = {}
        wanted = set(cls.__dataclass_fields__) & {
            "system",
            "instructions",
            "max_turns",
            "max_failures",
            "max_tokens_per_turn",
        }
        classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
        for node in classes[:1]:
            for statement in node.body:
                if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
                    continue
                name = statement.targets[0].id
                if name in wanted:
                    with contextlib.suppress(ValueError):
                        values[name] = ast.literal_eval(statement.value)
        return cls(**values)


def render(recipe: Recipe, facts: Facts, class_name: str, docstring: str) -> str:
    """Writes the source of the harness that a recipe stands for.

    Args:
        recipe: The decisions.
        facts: The domain's shapes.
        class_name: Name of the class.
        docstring: What it tries and why.

    Returns:
        A complete module with one `harness_sdk.Harness` subclass.
    """
    short, marked, by_choice = recipe.view != "full", recipe.order == "marked", recipe.reading == "choices"
    attributes = {
        "system": recipe.system,
        "instructions": recipe.instructions,
        "max_turns": recipe.max_turns,
        "max_failures": recipe.max_failures,
        "max_tokens_per_turn": recipe.max_tokens_per_turn,
    }
    if not by_choice or recipe.opened:
        attributes["stop_strings"] = (f"</{facts.tool}>",)
    methods = [_TOOLS, _PACK_OPENED if recipe.opened else _PACK]
    methods.append(_SHOW_CHOICES if short else _SHOW_ALL)
    methods += [_MARKED_FIRST] if short and marked else []
    methods += [_PARSE_CHOICES, _BARE] if by_choice else [_PARSE_OPENED] if recipe.opened else []
    methods.append(_RECOVER)
    methods.append(_FAILED_TURNS if recipe.retry == "explain" else _NO_FAILED_TURNS)
    listing = f'item["{recipe.view}"] for item in data["{facts.choices}"]'
    fill = {
        "@TOOL@": facts.tool,
        "@ARGUMENT@": facts.argument,
        "@CHOICES@": facts.choices or "",
        "@TITLE@": (facts.choices or "").replace("_", " "),
        "@FACTS@": "".join(f"{name.replace('_', ' ')}: {{data['{name}']}}\\n" for name in facts.facts),
        "@LIST@": f"self.marked_first([{listing}])" if marked else f"[{listing}]",
        "@NOTATIONS@": repr(facts.notations),
        "@FIRST@": facts.notations[0] if facts.notations else "",
    }
    text = "\n\n".join(indent(method.strip(), "    ") for method in methods)
    for mark, value in fill.items():
        text = text.replace(mark, value)
    names = ["Episode", "Harness", "Message", "ParseFailure", "ToolSchema", "ToolSpec", "Turn"]
    names += ["Completion", "ToolCall"] if by_choice or recipe.opened else []
    lines = [f'"""{docstring}"""', ""]
    lines += ["import re"] if by_choice else []
    lines += ["from collections import Counter"] if short and marked else []
    lines += [""] if by_choice or (short and marked) else []
    lines += [f"from harness_sdk import {', '.join(sorted(names))}", "", ""]
    lines += [f"class {class_name}(Harness):", f'    """{docstring.splitlines()[0]}"""', ""]
    lines += [f"    {name} = {value!r}" for name, value in attributes.items()]
    return "\n".join([*lines, "", text]) + "\n"


_TOOLS = r"""
def tools(self, env_tools: list[ToolSpec]) -> list[ToolSchema]:
    return []
"""

_PACK = r"""
def pack(self, episode: Episode) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
    messages.append({"role": "user", "content": f"{self.show(episode)}\n\n{self.instructions}".strip()})
    for turn in self.failed_turns(episode):
        messages.append({"role": "assistant", "content": turn.completion.text})
        messages.append({"role": "user", "content": turn.feedback or self.instructions})
    return messages
"""

_PACK_OPENED = _PACK.replace(
    "    return messages",
    """    # The reply begins inside the tag; the model only has to fill it in.
    messages.append({"role": "assistant", "content": "<@TOOL@>"})
    return messages""",
)

_SHOW_ALL = r"""
def show(self, episode: Episode) -> str:
    return episode.observation.text
"""

_SHOW_CHOICES = r"""
def show(self, episode: Episode) -> str:
    data = episode.observation.data
    choices = " ".join(@LIST@)
    return f"@FACTS@@TITLE@: {choices}"
"""

_MARKED_FIRST = r"""
def marked_first(self, choices: list[str]) -> list[str]:
    # A mark is what a choice carries besides letters and digits. The rarer a mark, the more it tells.
    marks = ["".join(c for c in choice if not c.isalnum()) for choice in choices]
    count = Counter(marks)
    ranked = sorted((mark == "", count[mark], choice) for mark, choice in zip(marks, choices))
    return [choice for _, _, choice in ranked]
"""

_PARSE_CHOICES = r"""
def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
    known = {}
    for item in episode.observation.data["@CHOICES@"]:
        for notation in @NOTATIONS@:
            known[self.bare(item[notation])] = item["@FIRST@"]
    for word in re.findall(r"[\w=+#-]+", completion.text):
        if self.bare(word) in known:
            return [ToolCall("@TOOL@", {"@ARGUMENT@": known[self.bare(word)]})]
    return ParseFailure("the reply names none of the choices")
"""

_BARE = r"""
def bare(self, word: str) -> str:
    return re.sub(r"^\W+|\W+$", "", word)
"""

_PARSE_OPENED = r"""
def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
    text = completion.text.split("</@TOOL@>")[0].strip()
    if not text or "\n" in text:
        return ParseFailure("the tag does not hold a single line")
    return [ToolCall("@TOOL@", {"@ARGUMENT@": text})]
"""

_RECOVER = r"""
def recover(self, failure: ParseFailure, episode: Episode) -> str | None:
    return f"That cannot be used: {failure.reason}. {self.instructions}".strip()
"""

_FAILED_TURNS = r"""
def failed_turns(self, episode: Episode) -> list[Turn]:
    failed: list[Turn] = []
    for turn in episode.turns:
        failed = [] if turn.failure is None else [*failed, turn]
    return failed
"""

_NO_FAILED_TURNS = r"""
def failed_turns(self, episode: Episode) -> list[Turn]:
    # A small model repeats what it reads, its own mistakes too: each try begins from a clean prompt.
    return []
"""
