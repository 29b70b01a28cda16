"""What all packages share: strict JSON, logs of JSON lines, the words of messages, the tree of errors."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

import whale_env
from whale_env.errors import InputError, WhaleError
from whale_env.json_lines import DamagedLogError, append_lines, cut_torn_line, numbered_lines, read_lines
from whale_env.registry import declared
from whale_env.strict_json import is_json, read_json, read_object
from whale_env.wording import did_you_mean, in_one_line, shortened


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1e999", "too large"),
        ('{"a": 1, "b": 2, "a": 3}', "the name 'a' stands twice"),
        ('"two\nlines"', "at character 4"),
        ("[" * 101 + "]" * 101, "nested deeper than 100 levels"),
        ("[" * 200_000, "nested deeper than 100 levels"),
        ('[{"a":' * 51 + "1" + "}]" * 51, "nested deeper than 100 levels"),
        ("", "at character 0"),
        ("9" * 5000, "4300 digits"),
    ],
)
def test_strict_json_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        read_json(text)
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_strict_json_reads_json() -> None:
    assert read_json(' {"a": [1, 2.5, null, true], "é": {}} ') == {"a": [1, 2.5, None, True], "é": {}}
    assert read_json("[" * 100 + "]" * 100)
    assert read_json("[[],[]," * 60 + "[]" + "]" * 60)  # many brackets, not deep
    assert read_json('{"a": "two\nlines", "a": 1}', lenient=True) == {"a": 1}
    with pytest.raises(InputError, match="nested deeper than 2"):
        read_json("[[[]]]", max_depth=2, lenient=True)


@pytest.mark.parametrize("text", ["[1]", "null", "{", '{"a": NaN}'])
def test_an_object_is_asked_for_by_name(text: str) -> None:
    with pytest.raises(InputError, match="--flag must be a JSON object, not"):
        read_object(text, "--flag")


def test_plain_json_is_told_from_other_data() -> None:
    assert is_json({"a": [1, "x", None, True, 0.5, ()]})
    assert not any(map(is_json, [float("nan"), {1: 2}, {"a": {1}}, [object()], b"x"]))


def test_a_log_survives_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    append_lines(path, [{"a": 1}, {"a": "\ud800é"}])
    append_lines(path, [3], sync=True)
    whole = path.read_bytes()
    assert list(read_lines(path)) == [{"a": 1}, {"a": "\ud800é"}, 3]
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        read = list(read_lines(path))
        cut_torn_line(path)
        assert path.read_bytes() == whole[: whole[:kept].rfind(b"\n") + 1]
        assert list(read_lines(path)) in (read, read[:-1])  # whole but for its line break
    path.write_bytes(whole + b"x" * 200_000)
    cut_torn_line(path)
    assert path.read_bytes() == whole


def test_a_log_that_others_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n{"a": 3}\n')
    with pytest.raises(DamagedLogError, match=r"log\.jsonl:3 is damaged"):
        list(read_lines(path))
    path.write_text('{"a": 1}\n{"a": \n')
    assert list(numbered_lines(path)) == [(1, {"a": 1})]


def test_words_of_messages() -> None:
    assert did_you_mean("Ches", ["math", "Chess"]) == " Did you mean 'Chess'?"
    assert did_you_mean("zzz", ["math"]) == did_you_mean("", []) == did_you_mean("x" * 10**6, ["y" * 10**6]) == ""
    assert shortened("abcdef", 6) == "abcdef" and shortened("abcdefg", 6) == "abcde…"
    assert in_one_line("two\n  lines\t", 9) == "two lines" and in_one_line(ValueError("a\nb")) == "a b"


def test_every_error_of_ours_stands_in_the_drawn_tree() -> None:
    drawn = importlib.import_module("whale_env.errors").__doc__ or ""
    for found in pkgutil.walk_packages(whale_env.__path__, "whale_env."):
        if not found.name.endswith(("worker", "__main__")):  # programs
            importlib.import_module(found.name)
    classes = [WhaleError]
    for kind in classes:
        classes += kind.__subclasses__()
    for kind in classes:
        if kind.__module__.startswith("whale_env."):
            assert kind.__name__ in drawn, f"draw {kind.__qualname__} of {kind.__module__}"
            builtin = [base for base in kind.__mro__ if base.__module__ == "builtins"]
            assert kind is WhaleError or len(builtin) > 3, f"{kind.__name__} has no builtin kind of its own"


def test_domains_declare_what_others_need_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert declared("chess").easy.arguments == {"themes": ["mateIn1"], "max_legal": 20}
    assert declared("whale/Math-v0").baseline == "reference_harnesses.math.h0:MathH0"
    assert declared("searchqa").listing == {"retriever": "none"}
    for name in ("chess", "math", "searchqa"):
        easy = declared(name).easy
        assert json.dumps(dict(easy.arguments)) and whale_env.make(name, **easy.arguments).tasks("train")
    unknown = declared("no_such_package:Env-v0")
    assert unknown.easy.arguments == {} and unknown.baseline == "harness_sdk.harness:Harness"
    assert declared("gymnasium").easy == unknown.easy
