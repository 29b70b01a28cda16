"""Rules on imported things that have few safe forms: classes that others share, decorators, `random.Random`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness_sdk.validator.allowed import DECORATORS, SDK_NAMES
from harness_sdk.validator.report import Problem
from harness_sdk.validator.tree import Tree, described, is_definition

_CLASS_READERS = frozenset(
    {"isinstance", "issubclass", "map", "typing.cast", "functools.partial", "collections.defaultdict"}
)
_SHARED_CLASSES = frozenset(f"harness_sdk.{name}" for name in SDK_NAMES if name[0].isupper())


def check(tree: Tree, node: ast.expr, path: str) -> Iterator[Problem]:
    """Yields what is wrong with the use of an imported thing.

    Args:
        tree: The source.
        node: The expression that stands for it.
        path: Its origin.
    """
    if path == "random.Random" and node not in tree.annotations:
        yield from _random(tree, node)
    elif path in _SHARED_CLASSES:
        yield from check_class(tree, node)
    elif path in DECORATORS:
        yield from _decorator_value(tree, node)


def _random(tree: Tree, node: ast.expr) -> Iterator[Problem]:
    """`random.Random` is fine with a seed that cannot be None."""
    call = tree.parents[node]
    seeded = isinstance(call, ast.Call) and call.func is node and len(call.args) == 1 and not call.keywords
    seed = call.args[0] if seeded and isinstance(call, ast.Call) else None
    while isinstance(seed, ast.BinOp):
        seed = seed.left
    match seed:
        case ast.Constant(value=int() | str()) | ast.JoinedStr() | ast.Attribute(attr="id" | "text"):
            return
        case ast.Call(func=ast.Name(id="len" | "str" | "int")):
            return
    message = "`random.Random` is used without a seed that is surely a text or a number"
    fix = "`from harness_sdk import seeded` and `rng = seeded(episode)`, or `random.Random(episode.task.id)`"
    yield tree.problem(node, "random", message, fix)


def check_class(tree: Tree, node: ast.expr) -> Iterator[Problem]:
    """Yields a class handed around: it could be called with another first argument, or be changed."""
    parent = tree.parents[node]
    if node in tree.annotations or isinstance(parent, ast.Attribute | ast.ClassDef | ast.MatchClass | ast.Raise):
        return
    if isinstance(parent, ast.Tuple):
        parent = tree.parents[parent]
    if isinstance(parent, ast.Call) and tree.called(parent) in _CLASS_READERS:
        return
    match parent:
        case ast.Call(func=ast.expr() as func) if func is node:
            return
        case ast.keyword(arg="default_factory") | ast.Subscript() | ast.ExceptHandler() | ast.BinOp(op=ast.BitOr()):
            return
    fix = "call it, test with `isinstance`, or use a function instead"
    yield tree.problem(node, "class-value", f"class {described(node)} is passed around as a value", fix)


def _decorator_value(tree: Tree, node: ast.expr) -> Iterator[Problem]:
    """A decorator called as a function could change a class that others share."""
    place: ast.AST = node
    parent = tree.parents[place]
    if isinstance(parent, ast.Call) and parent.func is place:
        place, parent = parent, tree.parents[parent]
    if not ((is_definition(parent) or isinstance(parent, ast.ClassDef)) and place in parent.decorator_list):
        fix = f"write `@{described(node)}` above a class or method of this file"
        yield tree.problem(node, "decorator", f"{described(node)} is used as a value", fix)
