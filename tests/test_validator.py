"""The static validator: what it refuses and why, what it must let pass, and that it always answers."""

from __future__ import annotations

import ast
import importlib
import json
import os
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness_sdk.harness import Harness
from harness_sdk.validator import RULES, Report, validate
from harness_sdk.validator.allowed import MODULES
from harness_sdk.validator.bounds import judge_pattern
from harness_sdk.validator.hooks import DECLARED, HOOKS

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("WHALE_SHARED", ROOT.parent / "shared"))
GOOD = sorted((ROOT / "tests" / "good_harnesses").glob("*.py.txt"))

TOP = """
import collections
import dataclasses
import functools
import json
import math
import random
import re
import string
import typing
from dataclasses import dataclass
from harness_sdk import Harness, ParseFailure, ToolCall, toolcalls
"""
MINE = "class Mine(Harness):\n    system = 'x'\n"


def top(code: str) -> str:
    """A valid harness with more code at the top level, after it."""
    return f"{TOP}\n{MINE}\n{textwrap.dedent(code)}\n"


def member(code: str) -> str:
    """A harness with more code in its class body."""
    return f"{TOP}\n{MINE}{textwrap.indent(textwrap.dedent(code), '    ')}\n"


def pack(code: str) -> str:
    """A harness whose `pack` runs the code first."""
    return member(f"def pack(self, episode):\n{textwrap.indent(textwrap.dedent(code), '    ')}\n    return []")


def rules(source: str) -> set[str]:
    return {problem.rule for problem in validate(source, "chess").problems}


def test_frames_are_valid() -> None:
    for source in (top(""), member("pass"), pack("pass")):
        assert validate(source, "chess").ok, str(validate(source, "chess"))


REFUSED: list[tuple[str, str]] = [
    ("source-text", top("x = '\0'")),
    ("source-text", top("# \u202e hidden")),
    ("source-text", top("x = '\ud800'")),
    ("source-text", top("") + "\ufeff"),
    ("source-text", "# -*- coding: latin-1 -*-\n" + top("")),
    ("source-size", top("x = '" + "a" * 70_000 + "'")),
    ("source-size", pack("y = " + "+".join("1" * 300))),
    ("source-size", pack("x" + ".a" * 3000)),
    ("source-size", pack("return " + "-" * 5000 + "1")),
    ("syntax-error", top("def f(:")),
    ("syntax-error", top("x = " + "(" * 300 + ")" * 300)),
    ("syntax-error", member("return 1")),
    ("syntax-error", pack("nonlocal nothing")),
    ("syntax-error", pack("break")),
    ("syntax", pack("with episode: pass")),
    ("syntax", pack("global G")),
    ("syntax", member("async def helper(self): pass")),
    ("syntax", pack("try: pass\nexcept* ValueError: pass")),
    ("syntax", pack("a = episode @ episode")),
    ("big-constant", pack("x = 'a' * 10**10")),
    ("big-constant", pack("x = 10**10**10")),
    ("big-constant", pack("x = 1 << 10**9")),
    ("big-constant", pack("x = [0] * 10_000_000")),
    ("big-constant", pack("x = list(range(10**12))")),
    ("big-constant", pack("x = pow(10, 10**9)")),
    ("big-constant", pack("x = math.factorial(10**7)")),
    ("big-constant", pack("x = 'a'.ljust(10**9)")),
    ("big-constant", pack("x = f'{1:1000000000}'")),
    ("big-constant", pack("x = '{:>1000000000}'.format(1)")),
    ("big-constant", pack("x = '%1000000000d' % 1")),
    ("big-constant", top("WIDE = ('a' * 1000 + 'b') * 100_000")),
    ("import", top("import os")),
    ("import", top("import os.path as p")),
    ("import", top("from ctypes import *")),
    ("import", top("from . import secrets")),
    ("import", top("from re import *")),
    ("import", "from __future__ import division\n" + top("")),
    ("import", top("import time")),
    ("import-placement", pack("import re")),
    ("import-placement", member("import re")),
    ("module-attribute", pack("random._os")),
    ("module-attribute", pack("collections._sys")),
    ("module-attribute", pack("re._compiler")),
    ("module-attribute", pack("json.decoder")),
    ("module-attribute", pack("typing.sys")),
    ("module-attribute", pack("typing.get_type_hints(episode)")),
    ("module-attribute", pack("dataclasses.make_dataclass('X', [])")),
    ("module-attribute", pack("string.Formatter().format('{}', 1)")),
    ("module-attribute", pack("random.seed(1)")),
    ("module-attribute", pack("random.random()")),
    ("module-attribute", top("from functools import lru_cache")),
    ("module-attribute", top("from random import choice")),
    ("module-attribute", top("from harness_sdk import rollout")),
    ("module-attribute", top("from harness_sdk.harness import toolcalls")),
    ("module-value", pack("m = re")),
    ("module-value", pack("x = [json][0]")),
    ("module-value", pack("x = toolcalls")),
    ("module-value", pack("x = collections.abc")),
    ("dunder", pack("episode.__class__")),
    ("dunder", pack("().__reduce_ex__(4)")),
    ("dunder", pack("self.__votes = 1")),
    ("dunder", pack("__import__('os')")),
    ("dunder", pack("x = __builtins__")),
    ("dunder", pack("().\u005f\uff3fclass\uff3f_")),
    ("dunder", pack("getattr(episode, '__class__')")),
    ("dunder", pack("super().__getattribute__('x')")),
    ("dunder", pack("match episode:\n    case ToolCall(__class__=c): pass")),
    ("dunder", pack("dict(__class__=1)")),
    ("dunder", top("if __name__ == '__main__': pass")),
    ("name", pack("eval('1')")),
    ("name", pack("x = exec")),
    ("name", pack("open('/etc/passwd')")),
    ("name", pack("print('<answer>42</answer>')")),
    ("name", pack("id(episode)")),
    ("name", pack("sorted(episode.turns, key=hash)")),
    ("name", pack("\uff45\uff56\uff41\uff4c('1')")),
    ("name", pack("raise KeyboardInterrupt")),
    ("name", pack("exit()")),
    ("name", pack("vars(self)")),
    ("name", pack("type('X', (), {})")),
    ("name", pack("x = type(episode)")),
    ("name", pack("setattr(self, 'x', 1)")),
    ("name", pack("getattr(episode, episode.first.text)")),
    ("name", pack("list(map(getattr, [()], ['x']))")),
    ("name", pack("getattr(*[self, '__class__'], 'x')")),
    ("name", pack("type(*['X', (), {}]).__name__")),
    ("name", pack("x = object()")),
    ("name", pack("x = property(len)")),
    ("unknown-name", pack("x = undefined_thing")),
    ("unknown-name", member("def a(self):\n    inner = 1\n    return inner\ndef b(self): return inner")),
    ("attribute", pack("(x for x in ()).gi_frame")),
    ("attribute", pack("x = episode.tb_frame.f_back.f_globals")),
    ("attribute", member("gi_frame = 1")[:-1] + "\n    def a(self, g): return g.gi_frame\n"),
    ("attribute", pack("episode.nonsense")),
    ("attribute", pack("type(episode).mro")),
    ("attribute", pack("hasattr(episode, 'gi_code')")),
    ("private-attribute", pack("episode._data")),
    ("private-attribute", pack("self._undefined")),
    ("format-string", pack("'{0.__class__}'.format(1)")),
    ("format-string", pack("'{0[a].gi_frame}'.format({})")),
    ("format-string", pack("'{0:{1.__class__}}'.format(1, 2)")),
    ("format-string", pack("episode.first.text.format(1)")),
    ("format-string", pack("str.format('{0.x}', 1)")),
    ("format-string", pack("list(map('{0.__class__}'.format, [1]))")),
    ("format-string", pack("('{' + '0.__class__}').format(1)")),
    ("format-string", pack("getattr('{0.__class__}', 'format')(1)")),
    ("format-string", pack("'{0.__class__}'.format_map({})")),
    ("format-string", pack("'{'.format(1)")),
    ("format-string", pack("'{0.task.split}'.format(episode)")),
    (
        "format-string",
        top("@dataclass\nclass B:\n    t: str\n    def f(self): return self.t.format(1)\nclass A:\n    t = ''"),
    ),
    ("format-string", member("t = 'x'\ndef a(self):\n    self.t = 'y'\n    return self.t.format(1)")),
    ("format-string", top("T = 'x'\ndef f(T): return T.format(1)")),
    ("rebinding", pack("len = 3")),
    ("rebinding", pack("json = 3")),
    ("rebinding", pack("for re in (): pass")),
    ("rebinding", pack("f = lambda str: str")),
    ("rebinding", pack("[list for list in ()]")),
    ("rebinding", pack("try: pass\nexcept ValueError as re: pass")),
    ("rebinding", pack("match episode:\n    case eval: pass")),
    ("rebinding", pack("self = episode")),
    ("rebinding", top("def f(self): self.x = 1")),
    ("rebinding", top("from harness_sdk import ToolCall as str")),
    ("redefined", top("A = 1\nA = 2")),
    ("redefined", member("def a(self): return 1\ndef a(self): return 2")),
    ("redefined", top("from re import sub as x\nfrom json import loads as x")),
    ("attribute-assignment", pack("re.fullmatch = len")),
    ("attribute-assignment", pack("json.loads = lambda text: {}")),
    ("attribute-assignment", top("json.loads = len")),
    ("attribute-assignment", pack("Harness.cache = 1")),
    ("attribute-assignment", pack("Mine.cache = 1")),
    ("attribute-assignment", pack("episode.turns = ()")),
    ("attribute-assignment", pack("for math.pi in (3,): pass")),
    ("attribute-assignment", pack("del json.loads")),
    ("attribute-assignment", pack("toolcalls.parse.cache = 1")),
    ("attribute-assignment", pack("f = toolcalls.parse\nf.cache = 1")),
    ("attribute-assignment", pack("self.f = toolcalls.parse\nself.f.cache = 1")),
    ("attribute-assignment", top("class S: pass\ndef f(S):\n    s = S()\n    s.x = 1")),
    ("attribute-assignment", top("@dataclass\nclass B:\n    s: object\n    def f(self): self.s.x = 1")),
    ("attribute-assignment", pack("self.max_turns = 100")),
    ("attribute-assignment", pack("self.parse = len")),
    ("attribute-assignment", member("@classmethod\ndef make(cls): cls.x = 1")),
    ("input-mutation", pack("episode.first.data['fen'] = 'x'")),
    ("input-mutation", pack("del episode.first.data['fen']")),
    ("input-mutation", pack("episode.first.data.update(a=1)")),
    ("input-mutation", member("def act(self, call, env):\n    call.arguments['move'] = 'e2e4'\n    return ''")),
    ("shared-state", top("CACHE = {}\ndef f(x): CACHE[x] = 1")),
    ("shared-state", top("CACHE = {}\ndef f(x): return CACHE.setdefault(x, 1)")),
    ("shared-state", top("SEEN = ([],)\ndef f(x): SEEN[0].append(x)")),
    ("shared-state", top("SEEN = []\ndef f(x):\n    alias = SEEN\n    alias.append(x)")),
    ("shared-state", top("SEEN = set()\ndef f(x): SEEN.add(x)")),
    ("shared-state", top("IT = (x for x in 'abc')")),
    ("shared-state", top("IT = zip('abc', 'abc')")),
    ("shared-state", member("cache = {}\ndef a(self, x): self.cache[x] = 1")),
    ("shared-state", member("cache = []\ndef a(self, x): Mine.cache.append(x)")),
    ("shared-state", member("cache = {}\ndef a(self): self.cache = {}")),
    ("shared-state", member("cache = []\ndef a(self): return self.cache")),
    ("import-time", top("len('x')")),
    ("import-time", top("for x in (1,): pass")),
    ("import-time", top("X = toolcalls.parse('', 'tags')")),
    ("import-time", top("def f(): return 1\nX = f()")),
    ("import-time", top("X = (lambda: 1)()")),
    ("import-time", top("X = sorted([1], key=(y := len))")),
    ("import-time", top("class A:\n    def __init__(self): pass\nX = A()")),
    ("import-time", top("assert True")),
    ("import-time", top("class A:\n    def tuple(x=1): pass\n    y = tuple()")),
    ("import-time", top("class A:\n    @staticmethod\n    def title(): pass\nX = A.title()")),
    ("import-time", member("for x in (1,): pass")),
    ("import-time", member("x = re.sub('a', 'b', 'c')")),
    ("import-time", top("def f(x: len('a')): pass")),
    ("import-time", top("x: len('a') = 1")),
    ("import-time", top("(a, b) = zip('ab', 'cd')")),
    ("default-argument", top("def f(x=[]): pass")),
    ("default-argument", top("def f(x=len('a')): pass")),
    ("default-argument", top("def f(*, x={}): pass")),
    ("default-argument", pack("f = lambda x=[]: x")),
    ("decorator", top("def d(f): return f\n@d\ndef g(): pass")),
    ("decorator", top("@functools.cache\ndef g(): pass")),
    ("decorator", top("@eval\n@'x'.format\nclass A: pass")),
    ("decorator", top("@dataclass(frozen=len)\nclass A: pass")),
    ("decorator", top("@dataclass(unsafe_hash=True)\nclass A: pass")),
    ("decorator", member("@property\ndef a(self): return 1\n@a.setter\ndef b(self, v): pass")),
    ("decorator", TOP + "@dataclass\n" + MINE),
    ("decorator", pack("dataclass(collections.Counter)")),
    ("decorator", pack("dataclasses.dataclass(eq=False)(collections.Counter)")),
    ("base-class", top("class S(str): pass")),
    ("base-class", top("class F(float): pass")),
    ("base-class", top("class M(type): pass")),
    ("base-class", top("class A(metaclass=type): pass")),
    ("base-class", top("class A(x=1): pass")),
    ("base-class", top("class A(json.JSONDecodeError): pass")),
    ("base-class", TOP + "class Mixin: pass\nclass Mine(Mixin, Harness): pass"),
    ("class-placement", pack("class A: pass")),
    ("class-placement", member("class A: pass")),
    ("class-value", pack("x = [Harness]")),
    ("class-value", pack("c = ToolCall")),
    ("class-value", top("class A:\n    def put(self, v): self.v = v\ndef f(): A.put(Harness, 1)")),
    ("class-value", member("def put(self, v): self.v = v\n@classmethod\ndef f(cls): cls.put(cls, 1)")),
    ("special-method", top("class A:\n    def __init_subclass__(cls): pass")),
    ("special-method", top("class A:\n    def __set_name__(self, owner, name): pass")),
    ("special-method", top("class A:\n    def __eq__(self, other): return True")),
    ("special-method", top("class A:\n    def __del__(self): pass")),
    ("special-method", top("class A:\n    def __getattr__(self, name): pass")),
    ("special-method", top("class A:\n    def __class_getitem__(cls, k): pass")),
    ("special-method", member("def __str__(self): return ''")),
    ("super", pack("super(Mine, self).pack(episode)")),
    ("super", pack("s = super()")),
    ("exception", pack("try: pass\nexcept: pass")),
    ("exception", pack("try: pass\nexcept BaseException: pass")),
    ("exception", pack("while True:\n    try:\n        break\n    except (ValueError, KeyboardInterrupt): pass")),
    ("endless-loop", pack("while True: pass")),
    ("endless-loop", pack("while 1:\n    for x in (): break")),
    ("endless-loop", pack("while True:\n    try: x = 1\n    except Exception: continue")),
    ("regex", pack("re.match(r'(a+)+$', 'a' * 40 + 'b')")),
    ("regex", top("P = re.compile(r'(?:\\w+\\s*)*!')")),
    ("regex", top("P = re.compile('(')")),
    ("random", pack("random.Random()")),
    ("random", pack("random.Random(None)")),
    ("random", pack("r = random.Random")),
    ("task-split", pack("if episode.task.split == 'train': pass")),
    ("task-split", pack("x = getattr(episode.task, 'split')")),
    ("harness-class", "x = 1"),
    ("harness-class", ""),
    ("harness-class", top("class Other(Harness): pass")),
    ("harness-class", top("class Other(Harness): pass")),
    ("hook-signature", member("def parse(self, text): return []")),
    ("hook-signature", member("def pack(self): return []")),
    ("hook-signature", member("def recover(self, failure, episode, extra): return ''")),
    ("hook-signature", member("async def stop(self, episode): return None")),
    ("hook-signature", member("@staticmethod\ndef stop(self, episode): return None")),
    ("hook-signature", member("pack = None")),
    ("hook-name", member("def prase(self, completion, episode): return []")),
    ("hook-name", member("def recovr(self, failure, episode): return None")),
    ("hook-name", member("def Pack(self, episode): return []")),
    ("hook-name", member("max_turn = 3")),
    ("hook-name", member("stop_string = ('x',)")),
    ("hook-return", member("def pack(self, episode): messages = []")),
    ("hook-return", member("def pack(self, episode): yield {}")),
    ("hook-return", member("def parse(self, completion, episode):\n    def inner(): return []\n    inner()")),
    ("method-signature", member("def helper(): return 1")),
    ("method-signature", member("@classmethod\ndef helper(self): return 1")),
    ("constructor", member("def __init__(self, size): pass")),
    ("limit", member("max_turns = -1")),
    ("limit", member("max_turns = 0")),
    ("limit", member("max_turns = float('nan')")),
    ("limit", member("max_turns = math.inf")),
    ("limit", member("max_turns = 2.5")),
    ("limit", member("max_turns = True")),
    ("limit", member("max_turns = '8'")),
    ("limit", member("max_turns = None")),
    ("limit", member("max_tokens = 10 ** 9")),
    ("limit", member("stop_strings = '</move>'")),
    ("limit", member("stop_strings = ('',)")),
    ("limit", member("@property\ndef max_turns(self): return 8")),
    ("prompt-text", member("instructions = 3")),
    ("prompt-text", member("instructions = ('a', 'b')")),
    ("prompt-text", member("def instructions(self): return ''")),
    ("prompt-attributes", member("prompt_attributes = 'system'")),
    ("prompt-attributes", member("prompt_attributes = ('sytem',)")),
    ("prompt-attributes", member("size = 3\nprompt_attributes = ('size',)")),
]


@pytest.mark.parametrize(("rule", "source"), REFUSED, ids=[f"{i}-{rule}" for i, (rule, _) in enumerate(REFUSED)])
def test_refused_by_the_rule_that_says_why(rule: str, source: str) -> None:
    report = validate(source, "chess")
    assert rule in {problem.rule for problem in report.problems}, str(report)
    assert not report.ok
    assert all(problem.fix and problem.message and problem.rule in RULES for problem in report.problems)


PEEK = "class Peek:\n    def step(self): return 1\n"

REBOUND = [
    member("def f(self, Peek): return Peek.step"),
    member("def f(self, *Peek): return Peek"),
    member("def f(self, **Peek): return Peek"),
    member("def f(self, *, Peek=None): return Peek"),
    member("def f(self, Peek, /): return Peek"),
    member("def Peek(self): return 1"),
    member("Peek = 'x'"),
    member("Peek: str = 'x'"),
    member("Mine = 'x'"),
    pack("Peek = episode"),
    pack("Peek: object = episode"),
    pack("x, (Peek, *y) = 1, (2, 3)"),
    pack("*Peek, x = 1, 2"),
    pack("Peek += 1"),
    pack("del Peek"),
    pack("for Peek in episode.turns: pass"),
    pack("for x, Peek in enumerate(episode.turns): pass"),
    pack("x = [Peek for Peek in episode.turns]"),
    pack("x = {Peek: 1 for Peek in 'ab'}"),
    pack("x = {1: Peek for y, Peek in [(1, 2)]}"),
    pack("x = list(Peek for Peek in 'ab')"),
    pack("x = (lambda Peek: Peek.step)(episode)"),
    pack("x = (lambda *Peek: Peek)(episode)"),
    pack("if (Peek := episode): pass"),
    pack("x = [y for z in 'ab' if (Peek := z)]"),
    pack("try:\n    pass\nexcept ValueError as Peek:\n    pass"),
    pack("with episode as Peek: pass"),
    pack("match episode:\n    case Peek: pass"),
    pack("match episode:\n    case [*Peek]: pass"),
    pack("match episode:\n    case {**Peek}: pass"),
    pack("match episode:\n    case (1 | 2) as Peek: pass"),
    pack("match episode:\n    case Observation(text=Peek): pass"),
    pack("def Peek(): pass"),
    pack("def inner(Peek): return Peek"),
    pack("def inner():\n    nonlocal Peek\n    Peek = 1"),
    pack("global Peek\nPeek = 1"),
    pack("import re as Peek"),
    pack("class Peek: pass"),
    top("import re as Peek"),
    top("from harness_sdk import ToolCall as Peek"),
    top("import Peek"),
    top("Peek = 3"),
    top("def Peek(): return 1"),
    top("def f(Peek): return Peek"),
]


@pytest.mark.parametrize("source", REBOUND)
@pytest.mark.parametrize("before", [True, False])
def test_a_class_name_keeps_its_meaning(source: str, before: bool) -> None:
    report = validate(PEEK + source if before else source + "\n\n" + PEEK, "chess")
    assert {problem.rule for problem in report.problems} & {"rebinding", "redefined"}, str(report)


def test_a_class_may_be_used_as_ever() -> None:
    source = pack("peek = Peek()\nx = isinstance(peek, Peek)\ny = [p.step() for p in (peek,)]")
    assert validate(source + "\n\n" + PEEK, "chess").ok


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, _ in REFUSED} == set(RULES)


ACCEPTED = [
    pack("rng = random.Random(episode.task.id)\nx = rng.choice('ab')"),
    pack("x = type(episode).__name__"),
    pack("x = getattr(episode, 'turns', ())"),
    pack("x = map(str.split, ['a b'])"),
    pack("task = episode.first.text\nlines = task.split()"),
    pack("x = 2**200 % 1000, 10**100, 'ab' * 100"),
    pack("try:\n    x = json.loads('1')\nexcept (json.JSONDecodeError, KeyError) as error:\n    x = str(error)"),
    pack("while True:\n    if episode.done: break"),
    pack("while not episode.done:\n    break"),
    pack("n = 0\ndef inner():\n    nonlocal n\n    n += 1\ninner()"),
    pack("fs = [lambda x, i=i: x + i for i in range(3)]"),
    pack("match episode.turns:\n    case [first, *_]: x = first.calls\n    case _: x = ()"),
    pack("if (m := re.search('a', 'b')) is not None: x = m.group(0)"),
    pack("x = f'{3.14159:.2f} {episode.first.text!r:>20} {len(episode.turns)=}'"),
    pack("x = '{:>5}|{:<5}'.format('a', 'b')"),
    pack("x = '{a[key]} {{literal}}'.format(a={'key': 1})"),
    pack("x = [m for m in super().pack(episode) if m['role'] != 'system']"),
    pack("x, *rest = [1, 2, 3]\na = b = 0\nx += 1\ndel rest[0]"),
    pack("x = isinstance(episode, (ToolCall, ParseFailure)) and list(map(ToolCall, ['a']))"),
    pack("_, y = 'a b'.split()\nassert y, 'why'"),
    member("max_tokens_per_turn = 512\nmax_tokens = max_tokens_per_turn * 8"),
    member("stages = ('a', 'b')\nmax_turns = len(stages) + 1"),
    member("max_turns: typing.ClassVar[int] = 2 * 4\nstop_strings = ['</a>']"),
    member("extra = 'be brief'\nprompt_attributes = ('system', 'extra')"),
    member("def step(self, n: int = 3, *, wide: bool = False) -> 'list[str]': return ['x'] * n"),
    member("def __init__(self, size=3):\n    super().__init__()\n    self._n = size"),
    member("def pack(self, episode, style='short'): return super().pack(episode)"),
    member("table = {'a': [1, 2]}\ndef a(self, k): return self.table[k][0] + self.table.get(k, [0])[0]"),
    member("examples = [{'role': 'user', 'content': 'x'}]\ndef a(self): return [*self.examples]"),
    top("Result = list[ToolCall] | ParseFailure\ndef f(x: Result) -> Result | None: return x"),
    top("Point = collections.namedtuple('Point', 'x y')\ndef f(): return Point(1, 2).x"),
    top("SQUARES = tuple(f + r for f in 'abc' for r in '123')\nINDEX = {s: i for i, s in enumerate(SQUARES)}"),
    top("P = re.compile(r'(?:[a-h][1-8]\\s*)+|(?:\\d+\\.)*(?:\\w+\\s)+', re.I | re.M)"),
    top("@dataclass\nclass Box:\n    items: list[str] = dataclasses.field(default_factory=list)\n    n: int = 0\n"
        "def f():\n    box = Box()\n    box.n += 1\n    box.items.append('a')\n    return box"),
    top("class Bad(ValueError): pass\nclass Worse(Bad):\n    def __str__(self): return self.args[0]\n"
        "def f():\n    try: raise Worse('x')\n    except Bad as error: return str(error)"),
    top("class Row(typing.TypedDict, total=False):\n    name: str"),
    top("LIMITS = (1, 2)\nA, B = LIMITS[0], 'b'.upper()"),
    top("LETTERS = string.ascii_letters.upper()"),
    top("def gen(n):\n    for i in range(n): yield i\n    yield from ()"),
    MINE.replace("Harness", "harness_sdk.Harness").replace("class", "import harness_sdk\nclass"),
    (TOP + MINE).replace("\n", "\r\n"),
]  # fmt: skip


@pytest.mark.parametrize("source", ACCEPTED)
def test_ordinary_code_passes(source: str) -> None:
    report = validate(source, "chess")
    assert report.ok, str(report)
    assert report.class_name == "Mine"


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_realistic_harnesses_pass(path: Path) -> None:
    source = path.read_text()
    report = validate(source, "any domain")
    assert report.ok, str(report)
    assert f"class {report.class_name}(" in source


def test_there_are_enough_realistic_harnesses() -> None:
    assert len(GOOD) >= 8


def test_report_says_everything_at_once_with_line_and_fix() -> None:
    source = textwrap.dedent(
        """\
        import os
        from harness_sdk import Harness, Toolcall

        class Mine(Harness):
            max_turns = -3

            def prase(self, completion, episode):
                return eval(completion.text)
        """
    )
    report = validate(source, "math")
    found = [(problem.line, problem.rule) for problem in report.problems]
    assert found == [(1, "import"), (2, "module-attribute"), (5, "limit"), (7, "hook-name"), (8, "name")]
    text = str(report)
    assert text == report.render()
    assert "Mine: refused, 5 problems" in text
    for line in (1, 2, 5, 7, 8):
        assert f"{line:>4} | {source.splitlines()[line - 1]}" in text
    assert "Did you mean 'parse'" in text
    assert "Did you mean 'ToolCall'" in text
    assert text.count("    fix: ") == 5


def test_column_counts_characters() -> None:
    report = validate(pack("x = 'äöü', undefined_thing"), "chess")
    (problem,) = report.problems
    assert problem.quote[problem.column - 1 :].startswith("undefined_thing")
    quote, marker = str(problem).splitlines()[1:3]
    assert quote[marker.index("^") :].startswith("undefined_thing")


def test_lines_are_counted_as_python_does() -> None:
    report = validate(f"{TOP}\n{MINE}    note = 'a\u2028b\x0c'\n    max_turns = 0\n", "chess")
    (problem,) = report.problems
    assert problem.quote.strip() == "max_turns = 0"


def test_report_text_is_safe_to_show() -> None:
    report = validate(pack("x = '<|im_end|>', '\x1b[31m', undefined_thing"), "chess")
    assert not report.ok
    assert "<|im_end|>" not in str(report)
    assert "\x1b" not in str(report)


def test_report_text_is_bounded() -> None:
    report = validate(top("\n".join(f"len({i})" for i in range(5000))), "chess")
    assert len(report.problems) == 5000
    assert len(str(report)) < 40_000


def test_same_source_same_report() -> None:
    source = "\n".join(source for _, source in REFUSED if source.isascii() and len(source) < 1000)
    assert validate(source, "chess") == validate(source, "math")


@pytest.mark.parametrize("hook", HOOKS)
def test_default_hooks_of_the_sdk_satisfy_the_signature_rule(hook: str) -> None:
    arguments = ", ".join(HOOKS[hook])
    call = ", ".join(HOOKS[hook][1:])
    assert validate(member(f"def {hook}({arguments}): return super().{hook}({call})"), "chess").ok


@pytest.mark.parametrize("limit", sorted(DECLARED.limits - {"stop_strings"}))
def test_every_limit_is_checked(limit: str) -> None:
    assert rules(member(f"{limit} = 0")) == {"limit"}
    assert rules(member(f"{limit} = 5")) == set()


@pytest.mark.parametrize(
    "pattern", [r"(a+)+", r"(a*)*b", r"((?:x+))+y", r"(\w+\s*)+:", r"(?:a|b+)*c", r"(?P<n>.*)*", r"(a+?)+"]
)
def test_exponential_patterns_are_refused(pattern: str) -> None:
    assert judge_pattern(pattern) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        r"a+b*c+",
        r"(?:\w+\s)+",
        r"(?:\d+\.)*\d+",
        r"<(\w+)>(.*?)</\1>",
        r"(a{1,3})+",
        r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}",
    ],
)
def test_ordinary_patterns_pass(pattern: str) -> None:
    assert judge_pattern(pattern) is None


def jail_rows() -> list[dict[str, str]]:
    path = SHARED / "cases" / "pyjail.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").strip("\n").split("\n")] if path.exists() else []


@pytest.mark.skipif(not jail_rows(), reason="the shared attack cases are not here")
def test_known_attacks_are_refused_wherever_they_stand() -> None:
    missed = []
    for row in jail_rows():
        for source in (row["payload"], top(row["payload"]), pack(row["payload"]), _in_parse(row["payload"])):
            if not _is_comment(row["payload"]) or source == row["payload"]:
                report = validate(source, "chess")
                missed += [(row["id"], source)] if report.ok else []
                assert len(str(report)) < 200_000
    assert missed == []


def _in_parse(code: str) -> str:
    return member(f"def parse(self, completion, episode):\n{textwrap.indent(code, '    ')}\n    return []")


def _is_comment(code: str) -> bool:
    """Below the second line a comment is only that; as a file of its own it may declare an encoding."""
    return all(line.lstrip().startswith("#") for line in code.splitlines())


def test_page_lists_exactly_the_rules() -> None:
    page = (ROOT / "docs" / "validator.md").read_text()
    rows = [line.strip("| ").split(" | ", 1) for line in page.splitlines() if line.startswith("| `")]
    assert {row[0].strip("`"): row[1].strip() for row in rows} == dict(RULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_allowed_names_exist(module: str) -> None:
    found = importlib.import_module(module)
    missing = {name for name in MODULES[module] if not hasattr(found, name)}
    assert missing <= {name for name in MODULES[module] if f"{module}.{name}" in MODULES}


def test_not_a_text() -> None:
    assert not validate(b"x = 1", "chess").ok  # type: ignore[arg-type]


SNIPPETS = sorted(
    {line for path in GOOD for line in path.read_text().splitlines()} | {s for _, s in REFUSED if len(s) < 2000}
)


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=30)), max_size=12), st.integers(0, 3))
def test_answers_whatever_comes(parts: list[str], indent: int) -> None:
    report = validate(textwrap.indent("\n".join(parts), " " * 4 * indent), "chess")
    assert report.ok == (not report.problems)
    assert isinstance(str(report), str)
    lines = [problem.line for problem in report.problems]
    assert lines == sorted(lines)


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(GOOD), st.randoms(use_true_random=False))
def test_answers_for_shuffled_syntax(path: Path, rng: object) -> None:
    """Any tree that Python can write out is judged: expressions of one program in the places of another's."""
    assert hasattr(rng, "choice")
    tree = ast.parse(path.read_text())
    expressions = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    for _ in range(8):
        host = rng.choice([node for node in ast.walk(tree) if isinstance(node, ast.stmt)])
        fields = [name for name, value in ast.iter_fields(host) if isinstance(value, ast.expr)]
        if fields:
            setattr(host, rng.choice(fields), rng.choice(expressions))
    try:
        source = ast.unparse(tree)
    except (RecursionError, ValueError):
        return
    assert isinstance(validate(source, "chess"), Report)


def test_deep_sources_are_answered_on_a_small_stack() -> None:
    sources = [
        "x = " + "-" * 20_000 + "1",
        "x" + "[0]" * 15_000,
        "(" * 9_000,
        "lambda: " * 8_000 + "1",
        "a if b else " * 5000 + "c",
    ]
    answers: list[Report] = []
    thread = threading.Thread(target=lambda: answers.extend(validate(source, "chess") for source in sources))
    thread.start()
    thread.join()
    assert len(answers) == len(sources)
    assert not any(report.ok for report in answers)


BIG = [
    "\n".join(f"len({i})" for i in range(6000)),
    "\n".join(f"class C{i}: pass" for i in range(3500)),
    "x = [" + "undefined_a, " * 5000 + "]",
    "def f(x): return " + " or ".join(["x._y"] * 90) + "\n" + "\n".join(["T.format(1)"] * 4000),
    "\n".join(f"def pack(self, episode): pass #{i}" for i in range(1500)),
    "A = (" + "A," * 20_000 + ")\n",
    "x = " + " < ".join(["9**999"] * 7000),
    "x = (" + "'re', " * 9000 + ")",
    "ä = 1; " * 7000,
    "\n".join(f"class C{i}: 0" for i in range(2000)) + "\nclass A:\n @classmethod\n def f(cls):\n  " + "cls.a;" * 5000,
    "S = ''\nclass A:\n def f(self): " + "self.s.x = 1; " * 4000,
]  # fmt: skip


@pytest.mark.parametrize("source", BIG, ids=range(len(BIG)))
def test_time_stays_in_proportion(source: str) -> None:
    assert len(source.encode()) <= 64 * 1024
    start = time.process_time()
    report = validate(source, "chess")
    str(report)
    assert time.process_time() - start < 3
    assert not report.ok


def test_the_hints_on_limits_and_modules_are_right() -> None:
    fix = validate(f"{TOP}\n{MINE}    max_tokens_per_turn = 0\n", "chess").problems[0].fix
    assert f"max_tokens_per_turn = {Harness.max_tokens_per_turn}" in fix
    fix = validate(f"import os\n{TOP}\n{MINE}", "chess").problems[0].fix
    documented = (
        (ROOT / "docs" / "validator.md").read_text("utf-8").split("## What may be used")[1].split("* **Random")[0]
    )
    modules = fix.removeprefix("use one of: ").split(", ")
    assert "whale_env" in modules and all(f"`{name}`" in documented for name in modules)
