"""Recipes: harnesses as a few independent decisions, and the shapes of a domain that decide what applies.

The offline proposer thinks in recipes and hands out source. A recipe knows nothing of any domain: it sees the names
and shapes of an observation's data and the tools. The source text that it stands for is written by
`optimizers.proposers.offline.templates`.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Literal

from harness_sdk.harness import Harness
from whale_env.json_schema import main_type
from whale_env.types import Observation, ToolSpec

SHORT = 24
"""Characters of a choice that fits a list."""

_LINE = re.compile(r".{1,96}")
"""A fact that is worth showing above a list."""

FEW = 64
"""Values of an argument that are worth naming one by one."""

Kind = Literal["string", "integer", "number", "option", "other"]
"""What a committed argument is read as: text, a number, one of a few values, or nothing that one word can give."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a domain's observations and tools look like.

    Attributes:
        tool: Name of the committing tool.
        argument: Its only required argument; where there is none such, its first string.
        kind: What that argument is read as.
        options: The few values that it can have, by how a reply writes them: case-folded.
        form: What stands before and after the value in the argument, read off the example in its schema.
        numeric: Whether the argument is a number or, if it is a text, observations are mostly about numbers.
        informing: Tools that only inform and take one text: name → that argument.
        counts: Informing tools that can be told how much to give: name → that argument.
        choices: Name of the data field that lists what can be chosen, or None.
        notations: Keys under which each choice is written.
        longest: Characters of the longest choice.
        facts: Names of text fields of one line.
    """

    tool: str
    argument: str
    kind: Kind = "string"
    options: Mapping[str, bool | str] = field(default_factory=dict)
    form: tuple[str, str] = ("", "")
    numeric: bool = False
    informing: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    choices: str | None = None
    notations: tuple[str, ...] = ()
    longest: int = 0
    facts: tuple[str, ...] = ()

    @classmethod
    def of(cls, tools: Sequence[ToolSpec], observations: Sequence[Observation]) -> Facts:
        """Reads the shapes off some observations."""
        tool = next((tool for tool in tools if tool.commits), tools[0])
        argument, schema = _committed(tool)
        options = _options(schema)
        kind = _kind(schema, options)
        digits = bool(observations) and fmean(bool(re.search(r"\d", o.text)) for o in observations) > 0.5
        found: dict[str, tuple[str, ...]] = {}
        facts: list[str] = []
        for name in observations[0].data if observations else ():
            values = [observation.data.get(name) for observation in observations]
            if all(isinstance(value, str) and value and _LINE.fullmatch(value) for value in values):
                facts.append(name)
            keys = [_notations(value) for value in values]
            if all(keys):
                found[name] = tuple(sorted(set.intersection(*map(set, keys)), key=keys[0].index))
        asked = [t for t in tools if not t.commits and not t.runs]  # what runs a program runs the model's own
        known: dict[str, Any] = {
            "tool": tool.name,
            "argument": argument,
            "kind": kind,
            "options": options,
            "form": _form(schema) if kind == "string" else ("", ""),
            "numeric": kind in ("integer", "number") or (kind == "string" and digits),
            "informing": {t.name: text for t in asked if (text := _text_argument(t))},
            "counts": {t.name: count for t in asked if (count := _count_argument(t))},
            "facts": tuple(facts),
        }
        if not found or kind != "string":  # what is listed is text
            return cls(**known)
        choices = max(found, key=lambda name: sum(len(o.data[name]) for o in observations))
        items = [item for o in observations for item in o.data[choices]]
        longest = max(len(item[key]) for item in items for key in found[choices])
        return cls(**known, choices=choices, notations=found[choices], longest=longest)


def _notations(value: Any) -> list[str]:
    """Returns the keys of a list of records of short texts, or nothing if it is none."""
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, Mapping) for item in value):
        return []
    first = value[0]
    return [
        key for key in first if all(isinstance(item.get(key), str) and 0 < len(item[key]) <= SHORT for item in value)
    ]


def _committed(tool: ToolSpec) -> tuple[str, Mapping[str, Any]]:
    """Returns the argument that a reply has to give and its schema; no schema's type fits where it takes several."""
    parameters: Any = tool.parameters
    properties = parameters.get("properties", {})
    required = [name for name in parameters.get("required", ()) if name in properties]
    if len(required) > 1 or not properties:
        return next(iter(required), ""), {"type": "null"}
    strings = [name for name, schema in properties.items() if main_type(schema) == "string"]
    argument = next(iter([*required, *strings, *properties]))
    return argument, properties[argument]


def _kind(schema: Mapping[str, Any], options: Mapping[str, bool | str]) -> Kind:
    if options:
        return "option"
    types = {type(value) for value in schema.get("enum", ("",))}  # counts where the schema names none
    kinds: dict[str, Kind] = {"string": "string", "integer": "integer", "number": "number"}
    if named := main_type(schema):
        return kinds.get(named, "other")
    return (
        "string" if types == {str} else "integer" if types == {int} else "number" if types <= {int, float} else "other"
    )


def _options(schema: Mapping[str, Any]) -> dict[str, bool | str]:
    """Returns the values of a boolean or of a few words, or nothing where a reply could not tell them apart."""
    values = list(schema.get("enum", (True, False) if main_type(schema) == "boolean" else ()))
    words = main_type(schema, "string") == "string" and all(isinstance(value, str) for value in values)
    if not words and not all(isinstance(value, bool) for value in values):
        return {}
    known = {" ".join(str(value).casefold().split()): value for value in values}
    return known if len(known) == len(values) <= FEW and all(known) else {}


def _form(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Returns what surrounds the value in a schema's example: an example of one word has no form."""
    example = next((text for text in schema.get("examples", ()) if isinstance(text, str)), "")
    around = re.fullmatch(r"(.*\W)\w+(\W*)", example, re.DOTALL)
    return (around[1], around[2]) if around else ("", "")


def _text_argument(tool: ToolSpec) -> str:
    """Returns a tool's only required argument, if that is a text."""
    parameters: Any = tool.parameters
    required = list(parameters.get("required", ()))
    properties = parameters.get("properties", {})
    return required[0] if len(required) == 1 and main_type(properties.get(required[0], {})) == "string" else ""


def _count_argument(tool: ToolSpec) -> str:
    """Returns a tool's first whole-number argument."""
    properties: Any = tool.parameters.get("properties", {})
    return next((name for name, schema in properties.items() if main_type(schema) == "integer"), "")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The decisions behind one harness.

    Attributes:
        system: System text.
        instructions: What stands after the observation.
        view: ``full`` shows the observation's text; otherwise the notation in which choices are listed.
        order: ``given``, or ``shuffled``: choices in another order at each model call.
        layout: Choices in one ``row``, or each on a line of its own (``lines``).
        context: Whether the facts stand above the choices.
        votes: Model calls whose replies name a choice before the one named most often is taken.
        reading: What counts as an action besides tags: nothing (``tags``), a listed choice as a bare word
            (``choices``), the last number (``number``), the first line (``line``), one of a few values (``option``).
        opened: Whether the reply is begun for the model, with the opening tag and form.
        retry: ``explain`` shows the failed reply and what was wrong; ``fresh`` asks again as if for the first time.
        inform: The informing tool that is asked with the observation's own words before a reply counts, or "".
        few: Whether that tool is asked for one result instead of as many as it gives.
        examples: How many worked examples come first.
        max_turns: Model calls.
        max_failures: Failures allowed.
        max_tokens_per_turn: Sampled tokens in a call.
        mechanisms: Names of what made the recipe, in order.
    """

    system: str = ""
    instructions: str = ""
    view: str = "full"
    order: Literal["given", "shuffled"] = "given"
    layout: Literal["row", "lines"] = "row"
    context: bool = True
    votes: int = 1
    reading: Literal["tags", "choices", "number", "line", "option"] = "tags"
    opened: bool = False
    retry: Literal["explain", "fresh"] = "explain"
    inform: str = ""
    few: bool = False
    examples: int = 0
    max_turns: int = Harness.max_turns
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
    def read(cls, source: str, facts: Facts | None = None) -> Recipe:
        """Reads the texts and limits that a harness's source declares, and how it shows and reads choices.

        Args:
            source: Source of any harness.
            facts: The domain's shapes.
        """
        values: dict[str, Any] = {}
        wanted = {"system", "instructions", "max_turns", "max_failures", "max_tokens_per_turn"}
        classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
        for node in classes[:1]:
            for statement in node.body:
                if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
                    continue
                name = statement.targets[0].id
                if name in wanted:
                    with contextlib.suppress(ValueError):
                        values[name] = ast.literal_eval(statement.value)
            if facts and facts.choices:
                values |= _choosing(node, facts)
        return cls(**values)


def _choosing(harness: ast.ClassDef, facts: Facts) -> dict[str, str]:
    """Returns how a harness shows and reads choices, by the keys of the data that its methods name."""
    named = {
        method.name: {node.value for node in ast.walk(method) if isinstance(node, ast.Constant)}
        for method in harness.body
        if isinstance(method, ast.FunctionDef)
    }
    shown = set().union(*(words for name, words in named.items() if name != "parse"))
    found = {"reading": "choices"} if facts.choices in named.get("parse", ()) else {}
    if not any(isinstance(node, ast.Attribute) and node.attr == "feedback" for node in ast.walk(harness)):
        found["retry"] = "fresh"
    views = [notation for notation in facts.notations if notation in shown and facts.choices in shown]
    return {**found, "view": views[0]} if views else found
