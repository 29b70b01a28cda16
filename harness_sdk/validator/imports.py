"""Rules on imports and on the names of modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness_sdk.validator import forms
from harness_sdk.validator.allowed import MODULES
from harness_sdk.validator.report import Problem, shortened
from harness_sdk.validator.tree import Tree

_NO_MODULE = {
    "random": "`from harness_sdk import seeded` and `rng = seeded(episode)`",
    "time": "drop it; a harness must not depend on the clock",
    "datetime": "drop it; a harness must not depend on the clock",
    "enum": "use string constants or `typing.Literal`",
    "abc": "drop it; `Harness` has a default for every hook",
    "types": "use a tuple or a plain constant",
    "copy": "build a new list or dict: `list(x)`, `dict(x)`, `{**x}`",
    "operator": "use a lambda, `key=lambda item: item[0]`",
    "logging": "drop it; nothing reads a harness's log",
    "heapq": "use `sorted(…)[:n]`",
    "bisect": "use `sum(x < value for x in items)`",
    "typing_extensions": "import from `typing`",
}


def check(tree: Tree, node: ast.Import | ast.ImportFrom) -> Iterator[Problem]:
    """Yields what is wrong with an import."""
    if not isinstance(tree.parents[node], ast.Module):
        fix = "move the import to the top of the file"
        yield tree.problem(node, "import-placement", "an import stands inside a class, function or block", fix)
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name not in MODULES:
                yield _no_module(tree, node, alias.name)
        return
    module = "." * node.level + (node.module or "")
    if module == "__future__":
        for alias in node.names:
            if alias.name != "annotations" or alias.asname:
                yield tree.problem(node, "import", "only `annotations` may come from `__future__`", "drop it")
        return
    if module not in MODULES:
        yield _no_module(tree, node, module)
        return
    for alias in node.names:
        if alias.name == "*":
            fix = f"name what you need: `from {module} import …`"
            yield tree.problem(node, "import", "a star import hides which names it binds", fix)
        elif alias.name not in MODULES[module] and f"{module}.{alias.name}" not in MODULES:
            yield _no_member(tree, node, module, alias.name)


def _no_module(tree: Tree, node: ast.AST, module: str) -> Problem:
    root = module.split(".")[0]
    names = ", ".join(sorted(name for name in MODULES if "." not in name))
    fix = _NO_MODULE.get(root) or tree.hint(module, f"use one of: {names}", MODULES)
    return tree.problem(node, "import", f"module {shortened(module)!r} may not be imported", fix)


def _no_member(tree: Tree, node: ast.AST, module: str, name: str) -> Problem:
    fix = f"use one of: {', '.join(sorted(MODULES[module]))}"
    if module == "random":
        fix = _NO_MODULE["random"]
    elif name in ("lru_cache", "cache"):
        fix = "compute it where it is needed, or keep it in a dict on `self`: a cache would outlive the episode"
    elif name == "Formatter":
        fix = "use an f-string"
    if module not in ("random", "math", "typing"):
        fix = tree.hint(name, fix, MODULES[module])
    return tree.problem(node, "module-attribute", f"`{shortened(module)}.{shortened(name)}` may not be used", fix)


def check_member(tree: Tree, node: ast.expr | ast.MatchClass, module: str, name: str) -> Iterator[Problem]:
    """Yields what is wrong with ``module.name``."""
    path = f"{module}.{name}"
    if path in MODULES:
        parent = tree.parents[node]
        if not (isinstance(parent, ast.Attribute) and parent.value is node):
            message = f"module {shortened(path)!r} is used as a value"
            yield tree.problem(node, "module-value", message, f"use what you need of it: `{path}.…`")
    elif name not in MODULES[module]:
        yield _no_member(tree, node, module, name)
    elif isinstance(node, ast.expr):
        yield from forms.check(tree, node, tree.origin(node) or path)
