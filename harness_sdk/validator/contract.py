"""Rules on the harness class itself: one subclass, its hooks, limits and prompt texts, as the SDK's `Harness` has them.

Everything is read off `Harness` and `Limits` by inspection, so that the rules cannot drift from the SDK.
"""

from __future__ import annotations

import ast
import operator
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness_sdk.harness import Harness
from harness_sdk.session import HarnessError, Limits
from harness_sdk.validator.allowed import BASES, DATACLASS_OPTIONS, DECORATORS
from harness_sdk.validator.hooks import DECLARED, HOOKS, meant_attribute, meant_hook, used_names
from harness_sdk.validator.report import Problem, shortened
from harness_sdk.validator.tree import (
    Definition,
    Tree,
    decorator_names,
    described,
    is_definition,
    named_values,
)

_OPTIONAL = ("recover", "stop")
_METHODS_WITH_SELF = frozenset({"property", "functools.cached_property", "typing.final"})


def find(tree: Tree) -> list[ast.ClassDef]:
    """Returns the top-level classes that extend `Harness`, directly or through one another."""
    found: dict[str, ast.ClassDef] = {}
    for node in tree.module.body:
        if isinstance(node, ast.ClassDef):
            names = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if names & found.keys() or any(tree.origin(base) == "harness_sdk.Harness" for base in node.bases):
                found[node.name] = node
    return list(found.values())


def last(found: list[ast.ClassDef]) -> list[ast.ClassDef]:
    """Returns the classes that no other one of them extends: a file with a base and one that extends it has one."""
    extended = {base.id for node in found for base in node.bases if isinstance(base, ast.Name)}
    return [node for node in found if node.name not in extended]


def check(tree: Tree, class_name: str = "") -> Iterator[Problem]:
    """Yields every problem with classes and with the harness: the named one, or the only one."""
    found = find(tree)
    extended = {name for name, node in tree.classes.items() if node.bases}
    for node in tree.nodes:
        if isinstance(node, ast.ClassDef):
            yield from _class(tree, node, extended)
        elif is_definition(node):
            yield from _decorators(tree, node)
            if tree.method_class(node):
                yield from _first_parameter(tree, node)
    if not found:
        fix = "`from harness_sdk import Harness`, then `class Mine(Harness): …`"
        yield tree.problem(tree.module, "harness-class", "no class extends `Harness`", fix)
    names = [node.name for node in found]
    if found and class_name and class_name not in names:
        fix = tree.hint(class_name, f"name one of: {shortened(', '.join(names), 200)}", names)
        yield tree.problem(tree.module, "harness-class", f"the file defines no harness {shortened(class_name)!r}", fix)
    only = last(found)
    for extra in [] if class_name else only[1:]:
        message = f"{shortened(extra.name)!r} is a second harness beside {shortened(only[0].name)!r}"
        fix = "keep one and merge what you need of the other into it, or say which: `file.py:Class`"
        yield tree.problem(extra, "harness-class", message, fix)
    used = used_names(tree.nodes)
    for node in found:
        yield from _harness(tree, node, used)


def _class(tree: Tree, node: ast.ClassDef, own: set[str]) -> Iterator[Problem]:
    if not isinstance(tree.parents[node], ast.Module):
        yield tree.problem(node, "class-placement", "a class stands inside something", "move it to the top level")
    for keyword in node.keywords:
        if not (keyword.arg == "total" and isinstance(keyword.value, ast.Constant)):
            message = f"class keyword {shortened(keyword.arg or '**')!r} may not be used"
            yield tree.problem(keyword, "base-class", message, "drop it")
    for base in node.bases:
        plain = isinstance(base, ast.Name) and base.id not in tree.imports and base.id not in tree.module_names
        name = base.id if isinstance(base, ast.Name) and plain else tree.origin(base)
        if name not in BASES and not (isinstance(base, ast.Name) and base.id in own):
            fix = "extend `Harness`, `typing.NamedTuple`, `typing.TypedDict`, `ValueError`, or nothing"
            yield tree.problem(base, "base-class", f"{described(base)} may not be a base class", fix)
    if len(node.bases) > 1:
        fix = "extend one class, and write shared code as functions"
        yield tree.problem(node, "base-class", "a class has several base classes", fix)
    yield from _decorators(tree, node)


def _decorators(tree: Tree, node: Definition | ast.ClassDef) -> Iterator[Problem]:
    for name, decorator in zip(decorator_names(tree, node), node.decorator_list, strict=True):
        options = decorator.keywords if isinstance(decorator, ast.Call) else []
        positional = decorator.args if isinstance(decorator, ast.Call) else []
        fits = (name == "dataclasses.dataclass") == isinstance(node, ast.ClassDef) or name == "typing.final"
        if name not in DECORATORS or not fits or (isinstance(decorator, ast.Call) and name != "dataclasses.dataclass"):
            names = ", ".join(f"@{n.rpartition('.')[2]}" for n in sorted(DECORATORS))
            if name.rpartition(".")[2] in ("lru_cache", "cache", "abstractmethod", "override", "wraps"):
                names += "; drop this one, the code works without it"
            message = f"decorator {shortened(ast.unparse(decorator))!r} may not be used here"
            yield tree.problem(decorator, "decorator", message, f"allowed are {names}")
        elif positional or not all(_plain_option(option) for option in options):
            names = ", ".join(sorted(DATACLASS_OPTIONS))
            fix = f"use True or False for some of {names}"
            yield tree.problem(decorator, "decorator", "a dataclass option is not listed or not a constant", fix)


def _plain_option(option: ast.keyword) -> bool:
    value = option.value.value if isinstance(option.value, ast.Constant) else None
    return option.arg in DATACLASS_OPTIONS and isinstance(value, bool)


def _first_parameter(tree: Tree, node: Definition) -> Iterator[Problem]:
    names = decorator_names(tree, node)
    if "staticmethod" in names:
        return
    wanted = "cls" if "classmethod" in names else "self"
    given = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    if given[:1] != [wanted]:
        fix = f"write `def {shortened(node.name)}({wanted}, …)`"
        message = f"method {shortened(node.name)!r} has no first parameter `{wanted}`"
        yield tree.problem(node, "method-signature", message, fix)


def _harness(tree: Tree, node: ast.ClassDef, used: frozenset[str]) -> Iterator[Problem]:
    for decorator in node.decorator_list:
        yield tree.problem(decorator, "decorator", "a harness class takes no decorator", "drop it")
    values = named_values(node.body)
    for item in node.body:
        if is_definition(item):
            yield from _method(tree, item, used)
    for name, value in values.items():
        yield from _declared(tree, values, name, value, used)


def _method(tree: Tree, node: Definition, used: frozenset[str]) -> Iterator[Problem]:
    name = node.name
    if name in HOOKS:
        yield from _hook(tree, node)
    elif name == "__init__":
        if _required(node) != ["self"]:
            fix = "write `def __init__(self)`, and take constants from class attributes"
            yield tree.problem(node, "constructor", "a fresh harness is made for each episode, without arguments", fix)
    elif name.startswith("__"):
        fix = "put the code into a hook or an ordinary method"
        yield tree.problem(node, "special-method", f"a harness may not define {shortened(name)!r}", fix)
    elif name in DECLARED.names:
        fix = f"write `{name} = …` in the class body; build a changing prompt in `pack`"
        rule = "limit" if name in DECLARED.limits else "prompt-text"
        yield tree.problem(node, rule, f"`{name}` is a class attribute, not a method", fix)
    else:
        meant = meant_hook(name, used)
        if meant:
            fix = f"Did you mean {meant!r}? If it is a helper, call it, or give it a name of its own"
            message = f"method {shortened(name)!r} is no hook and would never be called"
            yield tree.problem(node, "hook-name", message, fix)


def _required(node: Definition) -> list[str]:
    positional = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    named = [arg.arg for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value is None]
    return positional[: len(positional) - len(node.args.defaults)] + named


def _hook(tree: Tree, node: Definition) -> Iterator[Problem]:
    name = node.name
    wanted = list(HOOKS[name])
    signature = f"def {name}({', '.join(wanted)})"
    if node.decorator_list and any(decorator_names(tree, node)):
        yield tree.problem(node, "hook-signature", f"hook {name!r} is decorated", f"write a plain `{signature}`")
    if isinstance(node, ast.AsyncFunctionDef):
        yield tree.problem(node, "hook-signature", f"hook {name!r} is asynchronous", f"write `{signature}`")
    given = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    if given[: len(wanted)] != wanted or len(_required(node)) > len(wanted):
        message = f"hook {name!r} is written with ({shortened(', '.join(given))})"
        yield tree.problem(node, "hook-signature", message, f"write `{signature}`")
    frame = tree.frames.get(node, [])
    if any(isinstance(item, ast.Yield | ast.YieldFrom) for item in frame):
        fix = "collect the items in a list and return it"
        yield tree.problem(node, "hook-return", f"hook {name!r} yields, so that it returns a generator", fix)
    elif name not in _OPTIONAL and not any(isinstance(item, ast.Return) and item.value for item in frame):
        fix = f"return what `Harness.{name}` returns, or call `return super().{name}({', '.join(wanted[1:])})`"
        yield tree.problem(node, "hook-return", f"hook {name!r} returns nothing", fix)


def _declared(
    tree: Tree, values: Mapping[str, ast.expr], name: str, node: ast.expr, used: frozenset[str]
) -> Iterator[Problem]:
    known = ChainMap(dict(values), tree.constants)
    if name in HOOKS:
        fix = f"write `def {name}({', '.join(HOOKS[name])})`"
        yield tree.problem(node, "hook-signature", f"hook {name!r} is assigned instead of defined", fix)
    elif name in DECLARED.limits:
        yield from _limit(tree, known, name, node)
    elif name in DECLARED.texts:
        value = literal(known, node)
        number = isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.Set | ast.Lambda)
        if number and not isinstance(value, str):
            message = f"`{name}` must be a text, not {shortened(ast.unparse(node))}"
            yield tree.problem(node, "prompt-text", message, f'write `{name} = "…"`')
    elif name == "prompt_attributes":
        yield from _prompt_attributes(tree, values, node)
    else:
        meant = meant_attribute(name, used)
        if meant:
            fix = f"Did you mean {meant!r}? If it is yours, use it, or give it a name of its own"
            yield tree.problem(node, "hook-name", f"class attribute {shortened(name)!r} has no effect", fix)


def _limit(tree: Tree, known: Mapping[str, ast.expr], name: str, node: ast.expr) -> Iterator[Problem]:
    value = literal(known, node)
    texts = name == "stop_strings"
    usual = getattr(Harness, name)
    fix = 'write a tuple of texts, `("</move>",)`' if texts else f"write a whole number, `{name} = {usual}`"
    unknown = value is None or (isinstance(value, tuple) and None in value)
    if unknown and not (isinstance(node, ast.Constant) and node.value is None):
        message = f"`{name}` must be written out, not computed: {shortened(ast.unparse(node))}"
        yield tree.problem(node, "limit", message, fix)
        return
    try:
        Limits.of({name: value})
    except HarnessError as error:
        yield tree.problem(node, "limit", shortened(str(error).removeprefix("limits: "), 160), fix)


def _prompt_attributes(tree: Tree, values: Mapping[str, ast.expr], node: ast.expr) -> Iterator[Problem]:
    names = literal(values, node)
    fix = 'write a tuple of names, `prompt_attributes = ("system", "instructions")`'
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        yield tree.problem(node, "prompt-attributes", "it must be a tuple of texts, written out", fix)
        return
    for name in names:
        value = values.get(name)
        if value is None and name not in DECLARED.texts:
            fix = tree.hint(name, f'add `{shortened(name)} = "…"` to the class body', values, DECLARED.texts)
            message = f"{shortened(name)!r} is not an attribute of the class"
            yield tree.problem(node, "prompt-attributes", message, fix)
        elif isinstance(value, ast.Constant) and not isinstance(value.value, str):
            message = f"{shortened(name)!r} does not hold a text"
            yield tree.problem(node, "prompt-attributes", message, "list only attributes that hold prompt text")


_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}


def literal(known: Mapping[str, ast.expr], node: ast.expr, depth: int = 8) -> Any:
    """Returns the value of a written-out constant: numbers, texts, tuples, simple arithmetic, other such constants.

    Args:
        known: Names that may be followed.
        node: The expression.
        depth: How far to follow it.

    Returns:
        The value, or None when it is not written out.
    """
    if depth == 0:
        return None
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=items) | ast.List(elts=items):
            found = [known.get(item.id) if isinstance(item, ast.Name) else item for item in items]
            return tuple(item.value if isinstance(item, ast.Constant) else None for item in found)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = literal(known, operand, depth - 1)
            return -value if isinstance(value, int | float) else None
        case ast.Name(id=name) if name in known:
            return literal(known, known[name], depth - 1)
        case ast.Call(func=ast.Name(id="len"), args=[operand], keywords=[]):
            value = literal(known, operand, depth - 1)
            return len(value) if isinstance(value, tuple | str) else None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            first, second = literal(known, left, depth - 1), literal(known, right, depth - 1)
            if isinstance(first, int | float) and isinstance(second, int | float):
                return _computed(op, first, second)
            if isinstance(first, str) and isinstance(second, str) and isinstance(op, ast.Add):
                return first + second
    return None


def _computed(op: ast.operator, first: float, second: float) -> float | None:
    try:
        value = _ARITHMETIC[type(op)](first, second)
        return value if abs(value) < 10**12 else None
    except (ArithmeticError, ValueError):
        return None
