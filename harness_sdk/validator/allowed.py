"""The allow-lists: syntax, built-in names, modules and their names, attributes, decorators, base classes.

Data only, no checks. What is missing here is refused; to allow more, add it here.
"""

from __future__ import annotations

import ast
import builtins
import collections
import itertools
import math
import random
import re
import types
from collections.abc import Mapping

from harness_sdk import types as sdk_types
from harness_sdk.harness import Harness, Tools
from whale_env import types as env_types

MAX_BYTES = 64 * 1024
MAX_NODES = 40_000
MAX_DEPTH = 100
MAX_BITS = 4096
MAX_LENGTH = 1_000_000
MAX_RANGE = 10_000_000


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

SYNTAX: frozenset[type[ast.AST]] = frozenset(
    {
        ast.Module, ast.FunctionDef, ast.ClassDef, ast.Return, ast.Delete, ast.Assign, ast.AugAssign, ast.AnnAssign,
        ast.For, ast.While, ast.If, ast.Match, ast.Raise, ast.Try, ast.Assert, ast.Import, ast.ImportFrom,
        ast.Nonlocal, ast.Expr, ast.Pass, ast.Break, ast.Continue,
        ast.BoolOp, ast.NamedExpr, ast.BinOp, ast.UnaryOp, ast.Lambda, ast.IfExp, ast.Dict, ast.Set, ast.ListComp,
        ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Yield, ast.YieldFrom, ast.Compare, ast.Call,
        ast.FormattedValue, ast.JoinedStr, ast.Constant, ast.Attribute, ast.Subscript, ast.Starred, ast.Name,
        ast.List, ast.Tuple, ast.Slice, ast.comprehension, ast.arguments, ast.arg, ast.keyword, ast.alias,
        ast.ExceptHandler, ast.match_case, ast.MatchValue, ast.MatchSingleton, ast.MatchSequence, ast.MatchMapping,
        ast.MatchClass, ast.MatchStar, ast.MatchAs, ast.MatchOr,
    }
)  # fmt: skip

OPERATORS: frozenset[type[ast.AST]] = frozenset(
    {
        ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.Pow, ast.LShift, ast.RShift, ast.BitOr, ast.BitXor,
        ast.BitAnd, ast.FloorDiv,
    }
)  # fmt: skip
"""Binary operators. Unary, boolean and comparison operators are all plain."""

ANNOTATION: frozenset[type[ast.AST]] = frozenset(
    {ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.BinOp, ast.Constant, ast.Starred}
)

EXCEPTIONS = _names(
    "Exception ArithmeticError AssertionError AttributeError IndexError KeyError LookupError "
    "NotImplementedError OverflowError RuntimeError StopIteration TypeError UnicodeDecodeError "
    "UnicodeEncodeError UnicodeError ValueError ZeroDivisionError FloatingPointError"
)

BUILTINS = EXCEPTIONS | _names(
    "abs all any ascii bin bool bytes callable chr complex dict divmod enumerate filter float format "
    "frozenset hex int isinstance issubclass iter len list map max min next oct ord pow range repr reversed "
    "round set slice sorted str sum tuple zip"
)
"""Built-in names that may be used as any value."""

SPECIAL_BUILTINS = _names("super type getattr hasattr object property staticmethod classmethod")
"""Built-in names that may be used in one form only."""

SITE_NAMES = _names("copyright credits exit help license quit")
ALL_BUILTINS = frozenset(name for name in dir(builtins) if name != "_") | SITE_NAMES

SDK_NAMES = _names(
    "Harness Message Completion ParseFailure Episode Turn StepResult Tools ToolCall ToolSpec ToolSchema "
    "Observation Task toolcalls seeded"
)

_TYPING = _names(
    "Any Callable ClassVar Collection Counter DefaultDict Deque Dict Final FrozenSet Generator Hashable "
    "Iterable Iterator List Literal Mapping MutableMapping MutableSequence NamedTuple Never NewType NoReturn "
    "NotRequired Optional Pattern Match Required Sequence Set Sized Tuple Type TypeAlias TypedDict Union cast "
    "final"
)

MODULES: Mapping[str, frozenset[str]] = {
    "re": _names(
        "compile match fullmatch search findall finditer sub subn split escape error Pattern Match A ASCII I "
        "IGNORECASE M MULTILINE S DOTALL X VERBOSE U UNICODE RegexFlag NOFLAG"
    ),
    "math": frozenset(name for name in dir(math) if not name.startswith("_")),
    "json": _names("loads dumps JSONDecodeError"),
    "string": _names(
        "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits punctuation printable "
        "whitespace capwords Template"
    ),
    "textwrap": _names("dedent fill indent shorten wrap"),
    "collections": _names("abc Counter OrderedDict ChainMap defaultdict deque namedtuple"),
    "collections.abc": _names(
        "Callable Collection Generator Hashable ItemsView Iterable Iterator KeysView Mapping MutableMapping "
        "MutableSequence MutableSet Reversible Sequence Set Sized ValuesView"
    ),
    "itertools": frozenset(dir(itertools))
    & _names(
        "accumulate batched chain combinations combinations_with_replacement compress count cycle dropwhile "
        "filterfalse groupby islice pairwise permutations product repeat starmap takewhile tee zip_longest"
    ),
    "functools": _names("reduce partial cmp_to_key cached_property"),
    "dataclasses": _names("dataclass field replace asdict astuple KW_ONLY"),
    "typing": _TYPING,
    "statistics": _names(
        "mean fmean geometric_mean harmonic_mean median median_low median_high median_grouped mode multimode "
        "pstdev pvariance quantiles stdev variance StatisticsError"
    ),
    "random": _names("Random"),
    "harness_sdk": SDK_NAMES | {"harness", "types", "randomness"},
    "harness_sdk.harness": _names("Harness Tools"),
    "harness_sdk.types": _names("Message Completion ParseFailure Episode Turn StepResult ToolSchema FinishReason Role"),
    "harness_sdk.toolcalls": _names("parse render Protocol"),
    "harness_sdk.randomness": _names("seeded"),
    "whale_env": _names("ToolCall ToolSpec Observation Task types"),
    "whale_env.types": _names("ToolCall ToolSpec Observation Task Json"),
}
"""Modules that may be imported, each with the names that may be used."""

SDK_MODULES = ("harness_sdk.harness", "harness_sdk.types", "harness_sdk.randomness", "whale_env", "whale_env.types")
"""Where an SDK name may also be imported from; all are read as ``harness_sdk``."""

PRIVATE_ATTRIBUTES = _names("_replace _asdict")
"""Underscore names that are public by documentation (named tuples)."""


def _public(*kinds: type) -> frozenset[str]:
    return frozenset(name for kind in kinds for name in dir(kind) if not name.startswith("_"))


def _frame_names() -> frozenset[str]:
    kinds = (
        types.FrameType, types.CodeType, types.FunctionType, types.GeneratorType, types.CoroutineType,
        types.AsyncGeneratorType, types.TracebackType, types.MethodType, types.CellType, types.ModuleType,
    )  # fmt: skip
    return _public(*kinds) - {"clear", "close", "send", "throw", "replace"}


INTERNALS = _frame_names() | {"mro", "with_traceback", "add_note"}
"""Attributes that lead into the interpreter; refused even where the file defines one of that name."""

ATTRIBUTES = (
    _public(
        str, bytes, int, float, complex, list, dict, set, frozenset, tuple, range, slice, re.Pattern, re.Match,
        collections.Counter, collections.OrderedDict, collections.ChainMap, collections.defaultdict,
        collections.deque, Harness, Tools,
        sdk_types.ParseFailure, sdk_types.Completion, sdk_types.StepResult, sdk_types.Turn, sdk_types.Episode,
        env_types.ToolSpec, env_types.ToolCall, env_types.Observation, env_types.Task,
    )
    | _names("specs step args msg doc pos lineno colno start end reason value from_iterable")
    | _names("substitute safe_substitute template send throw close")
    | (_public(random.Random) - {"seed", "getstate", "setstate", "VERSION"})
) - INTERNALS - {"default_factory"}  # fmt: skip
"""Attributes that may be used on any value."""

MUTATORS = _names(
    "append appendleft extend extendleft insert remove pop popleft popitem clear update setdefault sort "
    "reverse add discard subtract rotate move_to_end intersection_update difference_update "
    "symmetric_difference_update shuffle"
)
"""Methods that change the value they are called on."""

READERS = _names(
    "get items keys values index count copy union intersection difference symmetric_difference issubset "
    "issuperset isdisjoint most_common elements total"
)
"""Methods that read a container without handing it out."""

COPYING_CALLS = _names(
    "len sorted sum min max any all enumerate zip list tuple set frozenset dict map filter reversed str repr "
    "isinstance bool iter range"
)
COPYING_METHODS = _names(
    "join extend update choice choices sample union intersection difference issubset issuperset dumps "
    "from_iterable product chain Counter intersection_update difference_update"
)
"""Callables that read a container given as an argument without keeping it."""

DECORATORS = _names("staticmethod classmethod property dataclasses.dataclass functools.cached_property typing.final")
DATACLASS_OPTIONS = _names("init repr eq order frozen match_args kw_only slots")

BASES = EXCEPTIONS | _names("object typing.NamedTuple typing.TypedDict harness_sdk.Harness")

SPECIAL_METHODS = _names("__init__ __post_init__ __str__ __repr__ __len__ __iter__ __contains__")

CONSTANT_CALLS = _names(
    "frozenset tuple list dict set range sorted len min max sum enumerate zip str int float chr ord reversed "
    "round abs bool bytes slice any all repr format re.compile re.escape textwrap.dedent textwrap.indent "
    "textwrap.fill collections.namedtuple collections.Counter collections.OrderedDict collections.defaultdict "
    "string.Template string.capwords json.dumps json.loads typing.cast functools.partial math.sqrt math.log "
    "math.exp math.prod math.ceil math.floor itertools.product itertools.chain itertools.chain.from_iterable "
    "itertools.permutations itertools.combinations harness_sdk.ToolSpec harness_sdk.ToolCall "
    "harness_sdk.Message harness_sdk.Observation"
)
CONSTANT_METHODS = _names(
    "strip lstrip rstrip format join split splitlines replace lower upper title capitalize casefold "
    "removeprefix removesuffix expandtabs center ljust rjust zfill items keys values union intersection "
    "difference fromkeys maketrans index count"
)
"""Calls that a constant expression may make at import."""

ITERATOR_CALLS = _names(
    "enumerate zip reversed itertools.product itertools.chain itertools.chain.from_iterable "
    "itertools.permutations itertools.combinations"
)
MUTABLE_CALLS = _names(
    "list dict set sorted collections.Counter collections.OrderedDict collections.defaultdict json.loads"
)
MUTABLE_METHODS = _names("split splitlines fromkeys maketrans copy")
