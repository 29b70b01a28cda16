"""Rules on the shape of the code: allowed syntax, handlers, loops.

An allow-list of node types, so that syntax that a later Python adds is refused until it is judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness_sdk.validator.allowed import ANNOTATION, COMPREHENSIONS, EXCEPTIONS, OPERATORS, SYNTAX
from harness_sdk.validator.report import Problem
from harness_sdk.validator.tree import Tree, described

_INSTEAD = {
    "AsyncFunctionDef": "write a plain `def`; hooks are synchronous",
    "Await": "call it plainly; hooks are synchronous",
    "With": "drop it; nothing that a harness may use is a context manager",
    "Global": "keep state in attributes of `self`",
    "TryStar": "use `except`",
}


def check(tree: Tree) -> Iterator[Problem]:
    """Yields every problem with the syntax used."""
    for node in tree.nodes:
        kind = type(node)
        if kind not in SYNTAX:
            fix = _INSTEAD.get(kind.__name__, "use plain functions, loops and expressions")
            yield tree.problem(node, "syntax", f"{kind.__name__} may not be used", fix)
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) not in OPERATORS:
            fix = "use plain arithmetic"
            yield tree.problem(node, "syntax", f"operator {type(node.op).__name__} may not be used", fix)
        elif isinstance(node, ast.comprehension) and node.is_async:
            yield tree.problem(node, "syntax", "an asynchronous comprehension may not be used", "write a plain `for`")
        elif isinstance(node, ast.ExceptHandler):
            yield from _handler(tree, node)
        elif isinstance(node, ast.While):
            yield from _loop(tree, node)
        elif node in tree.annotations and kind not in ANNOTATION:
            fix = "write a type: `str`, `list[str]`, `dict[str, int] | None`"
            yield tree.problem(node, "import-time", f"an annotation holds {kind.__name__}", fix)


def _handler(tree: Tree, node: ast.ExceptHandler) -> Iterator[Problem]:
    if node.type is None:
        fix = "write `except Exception:` or a narrower one, such as `except ValueError:`"
        yield tree.problem(node, "exception", "a bare `except:` also catches what must not be caught", fix)
        return
    for kind in node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]:
        name = kind.id if isinstance(kind, ast.Name) else None
        imported = tree.origin(kind) in ("json.JSONDecodeError", "re.error", "statistics.StatisticsError")
        if not (name in EXCEPTIONS or name in tree.classes or name in tree.constants or imported):
            fix = "name an ordinary exception: `Exception`, `ValueError`, `KeyError`, `json.JSONDecodeError`, …"
            yield tree.problem(kind, "exception", f"{described(kind)} may not be caught", fix)


def _loop(tree: Tree, node: ast.While) -> Iterator[Problem]:
    if isinstance(node.test, ast.Constant) and node.test.value and not _leaves(node):
        fix = "add a `break` or `return`, or loop over a `range`"
        yield tree.problem(node, "endless-loop", "this loop has no way out", fix)


def _leaves(loop: ast.While) -> bool:
    """Whether a loop's body can end it: `break` of its own, `return`, `raise` or `yield`."""
    stack: list[tuple[ast.AST, bool]] = [(statement, True) for statement in loop.body]
    while stack:
        node, own = stack.pop()
        if isinstance(node, ast.Return | ast.Raise | ast.Yield | ast.YieldFrom):
            return True
        if own and isinstance(node, ast.Break):
            return True
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef, *COMPREHENSIONS)):
            continue
        inner = own and not isinstance(node, ast.For | ast.While)
        stack += [(child, inner) for child in ast.iter_child_nodes(node)]
    return False
