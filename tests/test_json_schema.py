"""Tool schemas in every form that JSON schema allows: checked, sampled, coerced, and played by an environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from harness_sdk import ParseFailure, toolcalls
from whale_env import DomainSpec, Observation, Outcome, Score, Task, ToolCall, ToolEnv, ToolSpec
from whale_env.json_schema import as_schema, main_type, schema_error, types_of
from whale_env.spaces import ToolCallSpace
from whale_env.types import Split

# a schema, values that fit it, values that do not
SCHEMAS: dict[str, tuple[Any, Sequence[Any], Sequence[Any]]] = {
    "nullable text": ({"type": ["string", "null"]}, ["a", None], [1, True, []]),
    "null first": ({"type": ["null", "integer"]}, [3, None], ["3", 3.5, True]),
    "number or text": ({"type": ["number", "string"]}, [1, 1.5, "x"], [None, True, {}]),
    "tuple of types": ({"type": ("boolean", "null")}, [True, None], [0, 1, "true"]),
    "true": (True, ["a", 1, None, [], {}], []),
    "null": (None, ["a", 1, None, [], {}], []),
    "empty": ({}, ["a", 1, None, [], {}], []),
    "type null": ({"type": None}, ["a", 1, None], []),
    "enum null": ({"type": "string", "enum": None}, ["a"], [1]),
    "the null type": ({"type": "null"}, [None], ["", 0, False]),
    "enum with null": ({"enum": ["a", None, 1]}, ["a", None, 1], ["b", True, 0]),
    "const": ({"const": 1}, [1], [True, 2, "1"]),
    "const null": ({"const": None}, [None], [0, ""]),
    "any of": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [3, None], ["x", 1.5]),
    "one of": ({"oneOf": [{"type": "boolean"}, {"enum": ["a"]}]}, [True, "a"], ["b", 1]),
    "any of true": ({"anyOf": [True, {"type": "null"}]}, [3, None, "x"], []),
    "any of false": ({"anyOf": [False, {"type": "integer"}]}, [3], [None, "x"]),
    "all of": ({"allOf": [{"type": ["string", "null"]}, {"enum": ["a", "b"]}]}, ["a"], [None, "c"]),
    "not": ({"type": "string", "not": {"enum": [""]}}, ["a"], ["", 1]),
    "items true": ({"type": "array", "items": True}, [[], [1, "a", None]], ["a", None]),
    "items null": ({"type": "array", "items": None}, [[], [1, "a"]], ["a"]),
    "items false": ({"type": "array", "items": False}, [[]], [[1]]),
    "items of two types": ({"type": "array", "items": {"type": ["integer", "null"]}}, [[1, None]], [["a"]]),
    "an object of anything": ({"type": "object"}, [{}, {"a": 1}], [[], "a"]),
    "properties null": ({"type": "object", "properties": None, "required": None}, [{}, {"a": 1}], [1]),
    "property true": ({"type": "object", "properties": {"a": True}}, [{}, {"a": 1}, {"a": None}], [{"b": 1}]),
    "property false": ({"type": "object", "properties": {"a": False, "b": True}}, [{}, {"b": 1}], [{"a": 1}]),
    "property null": ({"type": "object", "properties": {"a": None}}, [{}, {"a": 1}], [{"b": 1}]),
    "others of a type": (
        {"type": "object", "properties": {"a": True}, "additionalProperties": {"type": ["integer", "null"]}},
        [{"a": "x", "b": 1, "c": None}],
        [{"b": "x"}],
    ),
    "no others": ({"type": "object", "additionalProperties": False}, [{}], [{"a": 1}]),
    "malformed": (
        {"type": 3, "enum": "ab", "required": "x", "properties": ["x"], "items": 3, "anyOf": {}, "examples": "a"},
        ["a", 1, None, [1], {"q": 1}],
        [],
    ),
    "a list of items": ({"type": "array", "items": [{"type": "string"}]}, [[1]], ["a"]),
    "reference": ({"$ref": "#/$defs/level"}, [1, None], ["x", 4.5]),
    "a reference that leads nowhere": ({"$ref": "#/$defs/none"}, [1, "a"], []),
    "a reference to itself": ({"$ref": "#/$defs/tree"}, [None, {"left": None}, {"left": {"left": None}}], [1]),
}
DEFINITIONS = {
    "level": {"type": ["integer", "null"]},
    "tree": {"type": ["object", "null"], "properties": {"left": {"$ref": "#/$defs/tree"}}},
}
CASES = [(schema, fits, misfits) for schema, fits, misfits in SCHEMAS.values()]


def tool(schema: Any) -> ToolSpec:
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": DEFINITIONS}
    return ToolSpec("act", "Acts.", parameters, commits=True)


@pytest.mark.parametrize(("schema", "fits", "misfits"), CASES, ids=list(SCHEMAS))
def test_what_fits_is_contained_and_nothing_else(schema: Any, fits: Sequence[Any], misfits: Sequence[Any]) -> None:
    space = ToolCallSpace([tool(schema)])
    for value in fits:
        assert space.error(ToolCall("act", {"x": value})) is None, value
    for value in misfits:
        problem = space.error(ToolCall("act", {"x": value}))
        assert problem is not None and problem.startswith("act.x") and "\n" not in problem, value


@pytest.mark.parametrize(("schema", "fits", "misfits"), CASES, ids=list(SCHEMAS))
def test_samples_are_contained_and_reach_every_type(schema: Any, fits: Sequence[Any], misfits: Sequence[Any]) -> None:
    space = ToolCallSpace([tool(schema)], seed=4)
    drawn = [space.sample() for _ in range(120)]
    assert all(call in space for call in drawn)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(drawn)))) == drawn
    kinds = {type(call.arguments["x"]) for call in drawn}
    assert len(kinds) >= (2 if isinstance(schema, dict) and isinstance(schema.get("type"), (list, tuple)) else 1)
    space.seed(4)
    assert [space.sample() for _ in range(120)] == drawn


@pytest.mark.parametrize("parameters", [True, None, {}, {"properties": None}, {"type": "object", "required": None}])
def test_parameters_that_say_nothing(parameters: Any) -> None:
    spec = ToolSpec("act", "Acts.", parameters)
    space = ToolCallSpace([spec], seed=0)
    assert space.sample() in space and ToolCall("act", {"any": 1}) in space
    assert ToolSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert toolcalls.parse('<tool_call>{"name": "act", "arguments": {}}</tool_call>', "hermes", [spec]) == [
        ToolCall("act")
    ]


def test_every_reader_sees_objects_only() -> None:
    spec = tool(True)
    assert spec.parameters["properties"] == {"x": {}}
    assert tool(False).parameters["properties"] == {"x": {"not": {}}}
    assert tool(None).parameters["properties"] == {"x": {}}
    plain = {"type": "object", "properties": {"x": {"type": ["string", "null"], "default": None}}}
    assert ToolSpec("a", "", plain).parameters is plain and as_schema(plain) is plain
    json.dumps(spec.schema())


def test_the_type_that_a_value_is_meant_to_have() -> None:
    assert main_type({"type": ["null", "integer"]}) == "integer" and types_of({"type": "null"}) == ("null",)
    assert main_type({"anyOf": [{"type": "null"}, {"type": ["null", "number"]}]}) == "number"
    assert main_type({"type": "null"}) == "null" and main_type({}) == "" and main_type({}, "string") == "string"


@pytest.mark.parametrize(
    ("kinds", "text", "value"),
    [
        (["string", "null"], "abc", "abc"),
        (["string", "null"], "null", None),
        (["integer", "null"], "5", 5),
        (["integer", "null"], "None", None),
        (["null", "number"], "1.5", 1.5),
        (["boolean", "null"], "True", True),
        (["integer", "string"], "5", "5"),
        (["array", "null"], "[1]", [1]),
    ],
)
def test_text_becomes_a_value_of_one_of_the_types(kinds: list[str], text: str, value: Any) -> None:
    spec = tool({"type": kinds})
    written = f"<tool_call>\n<function=act>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    assert toolcalls.parse(written, "qwen_xml", [spec]) == [ToolCall("act", {"x": value})]
    native = json.dumps({"name": "act", "arguments": {"x": value}})
    assert toolcalls.parse(f"<tool_call>{native}</tool_call>", "hermes", [spec]) == [ToolCall("act", {"x": value})]


@pytest.mark.parametrize("schema", [True, None, False, {}, {"type": ["array", "object", "null"]}, {"$ref": "#"}])
def test_any_schema_is_read_by_the_parsers_without_a_fault(schema: Any) -> None:
    for text in ('{"a": 1}', "abc", "5", ""):
        written = f"<tool_call>\n<function=act>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
        for found in toolcalls.parse(written, "qwen_xml", [tool(schema)]):
            assert isinstance(found, ToolCall | ParseFailure)


class Session:
    """Accepts every call."""

    def observe(self) -> Observation:
        return Observation("Act.")

    def apply(self, call: ToolCall) -> Outcome:
        return Outcome(self.observe(), done=True)

    def said(self, call: ToolCall, text: str) -> bool:
        return True

    def score(self) -> Score:
        return Score(1.0)


class Domain:
    """One task, one tool."""

    def __init__(self, schema: Any) -> None:
        self.spec = DomainSpec("schemas", (tool(schema),), max_invalid=100)

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}-1", "schemas", split)]

    def start(self, task: Task, seed: int) -> Session:
        return Session()


@pytest.mark.parametrize(("schema", "fits", "misfits"), CASES, ids=list(SCHEMAS))
def test_an_environment_plays_with_every_schema(schema: Any, fits: Sequence[Any], misfits: Sequence[Any]) -> None:
    env = ToolEnv(Domain(schema))
    for value in fits:
        env.reset(seed=0)
        assert env.step(ToolCall("act", {"x": value}))[1:] == (1.0, True, False, {"error": None})
    env.reset(seed=0)
    for value in misfits:
        _, reward, terminated, truncated, info = env.step(ToolCall("act", {"x": value}))
        assert (reward, terminated, truncated) == (0.0, False, False) and info["error"]


class Unspeakable:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "action",
    [
        "e2e4", "", None, 3, 2.5, True, b"e2e4", [], {}, {"name": "act", "arguments": {"x": 1}}, ("act", {"x": 1}),
        object(),         Unspeakable(), ToolCall, ToolCall("act", None), ToolCall("act", "x"), ToolCall("act", [1]),  # type: ignore[arg-type]
        ToolCall(None), ToolCall(3), ToolCall([]), ToolCall("act", {1: 2}), ToolCall("act", {"x": float("nan")}),  # type: ignore[arg-type]
        ToolCall("act", {"x": object()}), ToolCall("nope"), ToolCall("act", {"x": "x" * 100_000}), "x" * 100_000,
    ],
    ids=lambda action: type(action).__name__,
)  # fmt: skip
def test_an_action_of_any_kind_is_an_invalid_call_and_no_exception(action: Any) -> None:
    env = ToolEnv(Domain({"type": "integer"}))
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation == Observation("Act.") and (reward, terminated, truncated) == (0.0, False, False)
    assert isinstance(info["error"], str) and info["error"] and "\n" not in info["error"] and len(info["error"]) < 300
    assert action not in env.action_space
    assert env.step(ToolCall("act", {"x": 1}))[1:3] == (1.0, True)


@pytest.mark.parametrize("name", ["chess", "math", "searchqa"])
def test_actions_of_other_kinds_end_an_episode_at_the_cap_only(name: str) -> None:
    import whale_env

    env = whale_env.make(name)
    env.reset(seed=0)
    cap = env.unwrapped.domain.spec.max_invalid  # type: ignore[attr-defined]
    for place, action in enumerate(("e2e4", None, {}, 7, b"", [], "x", 1.5)[:cap], 1):
        _, reward, terminated, _, info = env.step(action)  # type: ignore[arg-type]
        assert info["error"].startswith("an action must be a ToolCall") and reward == 0.0
        assert terminated == (place == cap)


def test_messages_name_the_types() -> None:
    assert schema_error(3, {"type": ["string", "null"]}) == "arguments must be of type string or null, not 3"
    problem = schema_error("x", {"anyOf": [{"type": "integer"}, {"type": "null"}]})
    assert problem == "arguments must be of type integer or null, not 'x'"
    assert "unknown schema type 'strig'" in str(schema_error(3, {"type": ["strig", "null"]}))


@pytest.mark.parametrize("schema", [schema for schema, _, _ in CASES], ids=list(SCHEMAS))
def test_the_checks_and_the_offline_proposer_read_every_schema(schema: Any) -> None:
    from harness_sdk.check.facts import signature
    from harness_sdk.check.scripted import _nonsense
    from optimizers.proposers.offline import recipes

    spec = tool(schema)
    assert signature(spec).startswith("act(x: ")
    assert _nonsense(spec).name == "act"
    argument, found = recipes._committed(spec)
    assert argument == "x"
    recipes._kind(found, recipes._options(found))
    recipes._form(found)
    assert recipes._count_argument(spec) == ("x" if main_type(found) == "integer" else "")
