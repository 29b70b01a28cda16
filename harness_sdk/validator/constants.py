"""Rules on state: nothing runs at import but constants, constants stay constant, hook arguments stay as they came.

A harness lives for one episode; whatever would outlive a hook other than on `self` is refused here, so that the
author hears of it, although a caged harness gets a fresh module for every episode anyway. Aliases are followed
through subscripts and attributes, not through other names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness_sdk.validator.allowed import (
    CONSTANT_CALLS,
    CONSTANT_METHODS,
    COPYING_CALLS,
    COPYING_METHODS,
    ITERATOR_CALLS,
    MODULES,
    MUTABLE_CALLS,
    MUTABLE_METHODS,
    MUTATORS,
    READERS,
)
from harness_sdk.validator.hooks import HOOKS
from harness_sdk.validator.report import Problem, shortened
from harness_sdk.validator.tree import Function, Tree, assigned_pairs, decorator_names, described, is_definition

_PLAIN = (
    ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BinOp, ast.UnaryOp,
    ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice, ast.Name, ast.Attribute, ast.Starred, ast.keyword,
    ast.comprehension, ast.ListComp, ast.SetComp, ast.DictComp,
)  # fmt: skip
_MUTABLE = (ast.List, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp)
_TUPLE = "make it a tuple, a frozenset or a text, or build it inside a method"


def check(tree: Tree) -> Iterator[Problem]:
    """Yields every problem with import-time code and with shared state."""
    records = frozenset(name for name, node in tree.classes.items() if _is_record(tree, node))
    yield from _body(tree, tree.module, records)
    for node in tree.nodes:
        if isinstance(node, ast.ClassDef):
            yield from _body(tree, node, records)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _defaults(tree, node)
    yield from _constants_stay(tree)
    yield from _inputs_stay(tree)


def _is_record(tree: Tree, node: ast.ClassDef) -> bool:
    """Whether making an instance runs no code of the file and gives an immutable value."""
    if tree.methods[node.name] & {"__init__", "__post_init__"}:
        return False
    if any(tree.origin(base) == "typing.NamedTuple" for base in node.bases):
        return True
    calls = [item for item in node.decorator_list if isinstance(item, ast.Call)]
    options = {option.arg: option.value for call in calls for option in call.keywords}
    frozen = options.get("frozen")
    return "dataclasses.dataclass" in decorator_names(tree, node) and (
        isinstance(frozen, ast.Constant) and frozen.value is True
    )


def _body(tree: Tree, owner: ast.Module | ast.ClassDef, records: frozenset[str]) -> Iterator[Problem]:
    seen: dict[str, str | None] = {}
    for node in owner.body:
        names: list[tuple[str, str | None]] = []
        value: ast.expr | None = None
        match node:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Import() | ast.ImportFrom():
                names = [(a.asname or a.name.split(".")[0], _imported(node, a)) for a in node.names]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names = [(node.name, None)]
            case ast.Assign() if all(isinstance(target, ast.Name) for target, _ in assigned_pairs(node)):
                names = [(target.id, None) for target, _ in assigned_pairs(node) if isinstance(target, ast.Name)]
                value = node.value
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [(name, None)] if node.value else []
                value = node.value
            case _:
                fix = "move it into a hook; only imports, classes, functions and `NAME = constant` may stand here"
                what = "the top level" if isinstance(owner, ast.Module) else "a class body"
                message = f"{type(node).__name__} would run at import, in {what}"
                yield tree.problem(node, "import-time", message, fix)
        for name, source in names:
            if name in seen and not (source and seen[name] == source):
                fix = "keep one definition; the later one silently wins"
                yield tree.problem(node, "redefined", f"{shortened(name)!r} is defined before", fix)
            seen[name] = source
        if value is not None:
            yield from _constant(tree, value, records, isinstance(owner, ast.ClassDef))


def _imported(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    if isinstance(node, ast.ImportFrom):
        return f"{node.module}.{alias.name}"
    return alias.name if alias.asname else alias.name.split(".")[0]


def _constant(tree: Tree, value: ast.expr, records: frozenset[str], in_class: bool) -> Iterator[Problem]:
    """Yields what in a module or class value is more than a constant expression."""
    stack: list[tuple[ast.AST, bool]] = [(value, False)]
    while stack:
        node, consumed = stack.pop()
        if isinstance(node, ast.Lambda):
            continue
        iterator = isinstance(node, ast.GeneratorExp)
        if isinstance(node, ast.Call):
            name = tree.called(node)
            iterator = name in ITERATOR_CALLS
            if not _constant_call(tree, node, name, records, in_class):
                fix = "write the value out, or compute it in a hook or in `__init__`"
                message = f"{described(node.func)}(…) would be called at import"
                yield tree.problem(node, "import-time", message, fix)
                continue
            stack += [(child, True) for child in (*node.args, *node.keywords)]
            if isinstance(node.func, ast.Attribute):
                stack.append((node.func.value, True))
        elif isinstance(node, (*_PLAIN, ast.GeneratorExp)):
            passed = isinstance(node, ast.comprehension | ast.Starred) or (consumed and isinstance(node, ast.keyword))
            stack += [(child, passed) for child in ast.iter_child_nodes(node) if isinstance(child, _NODES)]
        else:
            fix = "write a constant expression"
            yield tree.problem(node, "import-time", f"{type(node).__name__} is no constant", fix)
        if iterator and not consumed:
            fix = "wrap it: `tuple(…)`"
            yield tree.problem(node, "shared-state", "an iterator is used up by whoever reads it first", fix)


_NODES = (ast.expr, ast.keyword, ast.comprehension)


def _constant_call(tree: Tree, node: ast.Call, name: str | None, records: frozenset[str], in_class: bool) -> bool:
    if name in records:
        return True
    if name == "dataclasses.field":
        return in_class
    if name in CONSTANT_CALLS:
        return "." in name or name not in tree.module_names | tree.method_names
    if isinstance(node.func, ast.Attribute) and node.func.attr in CONSTANT_METHODS - tree.method_names:
        return tree.origin(node.func.value) not in MODULES
    return False


def _defaults(tree: Tree, node: Function) -> Iterator[Problem]:
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is None:
            continue
        nested = node in tree.owners
        stack: list[ast.AST] = [default]
        while stack:
            item = stack.pop()
            if isinstance(item, (*_MUTABLE, ast.GeneratorExp)) or (isinstance(item, ast.Call) and not nested):
                fix = "write `None` and fill it in inside the function"
                message = f"a default argument holds {type(item).__name__}, which would be shared by all calls"
                yield tree.problem(item, "default-argument", message, fix)
            elif isinstance(item, ast.NamedExpr | ast.Yield | ast.YieldFrom):
                message = f"a default argument holds {type(item).__name__}"
                yield tree.problem(item, "default-argument", message, "write a constant")
            elif not isinstance(item, ast.Lambda):
                stack += [child for child in ast.iter_child_nodes(item) if isinstance(child, _NODES)]


def _constants_stay(tree: Tree) -> Iterator[Problem]:
    for name, values in tree.values.items():
        for value in values if name in tree.stores else ():
            if _mutable(tree, value):
                fix = "assign it in `__init__` only, and leave the class attribute away"
                message = f"{shortened(name)!r} is a mutable class attribute and is also assigned on `self`"
                yield tree.problem(value, "shared-state", message, fix)
    verdicts = {name: _mutable(tree, value) for name, value in tree.constants.items()}
    fields = {name: any(_mutable(tree, value) for value in values) for name, values in tree.values.items()}
    for node in tree.nodes:
        if isinstance(node, ast.Name) and node.id in verdicts and isinstance(node.ctx, ast.Load):
            shadowed = any(node.id in tree.local_names.get(function, ()) for function in tree.enclosing(node))
            yield from () if shadowed else _use(tree, node, node.id, verdicts[node.id])
        elif isinstance(node, ast.Attribute) and node.attr in fields and _own(tree, node.value):
            yield from _use(tree, node, node.attr, fields[node.attr] and node.attr not in tree.stores)


def _own(tree: Tree, base: ast.expr) -> bool:
    return isinstance(base, ast.Name) and (base.id in ("self", "cls") or base.id in tree.classes)


def _mutable(tree: Tree, value: ast.expr) -> bool:
    match value:
        case ast.List() | ast.Set() | ast.Dict() | ast.ListComp() | ast.SetComp() | ast.DictComp():
            return True
        case ast.BinOp(left=left, right=right):
            return _mutable(tree, left) or _mutable(tree, right)
        case ast.IfExp(body=body, orelse=orelse):
            return _mutable(tree, body) or _mutable(tree, orelse)
        case ast.Call(func=ast.Attribute(attr=name)) if name in MUTABLE_METHODS and tree.origin(value.func) is None:
            return True
        case ast.Call():
            return tree.called(value) in MUTABLE_CALLS
    return False


def _use(tree: Tree, node: ast.expr, name: str, mutable: bool) -> Iterator[Problem]:
    """Follows one use of a constant to where it is changed, or handed out while it can still be changed."""
    last, change = _follow(tree, node)
    if change:
        fix = "keep what changes in an attribute of `self` that `__init__` assigns"
        message = f"constant {shortened(name)!r} is changed, which would outlive the episode"
        yield tree.problem(change, "shared-state", message, fix)
    elif mutable and last is node and not _reads(tree, node):
        message = f"mutable constant {shortened(name)!r} is handed out, so that it could be changed"
        yield tree.problem(node, "shared-state", message, f"{_TUPLE}, or hand out a copy: `list(x)`, `dict(x)`")


def _follow(tree: Tree, node: ast.expr) -> tuple[ast.AST, ast.AST | None]:
    """Climbs from a value through subscripts and attributes; returns the last link, and a change if there is one."""
    current: ast.AST = node
    while True:
        parent = tree.parents[current]
        match parent:
            case ast.Subscript(value=ast.expr() as inner) if inner is current:
                if not isinstance(parent.ctx, ast.Load):
                    return current, parent
                current = parent
            case ast.Attribute(value=ast.expr() as inner) if inner is current:
                call = tree.parents[parent]
                called = isinstance(call, ast.Call) and call.func is parent
                if called and parent.attr in MUTATORS:
                    return current, call
                current = call if called and parent.attr == "get" else parent
                if called and parent.attr in READERS - {"get"}:
                    return current, None
            case _:
                return current, None


def _reads(tree: Tree, node: ast.expr) -> bool:
    """Whether the place of a mutable constant only reads or copies it."""
    parent = tree.parents[node]
    match parent:
        case ast.Compare() | ast.Starred() | ast.BinOp() | ast.FormattedValue() | ast.UnaryOp() | ast.Assert():
            return True
        case ast.For(iter=place) | ast.comprehension(iter=place) | ast.If(test=place) | ast.While(test=place):
            return place is node or isinstance(parent, ast.comprehension)
        case ast.IfExp(test=place) | ast.Match(subject=place):
            return place is node
        case ast.Dict(keys=keys, values=values):
            return any(key is None and value is node for key, value in zip(keys, values, strict=True))
        case ast.keyword(arg=arg):
            return arg is None
        case ast.Call(func=ast.Name(id=name)) if name not in tree.imports:
            return name in COPYING_CALLS
        case ast.Call(func=func):
            name = func.attr if isinstance(func, ast.Attribute) else (tree.origin(func) or "").rpartition(".")[2]
            return name in COPYING_METHODS
    return node in tree.annotations


def _inputs_stay(tree: Tree) -> Iterator[Problem]:
    for function, frame in tree.frames.items():
        if not (is_definition(function) and tree.method_class(function) and function.name in HOOKS):
            continue
        given = {arg.arg for arg in function.args.args[1:]}
        given -= {item.id for item in frame if isinstance(item, ast.Name) and not isinstance(item.ctx, ast.Load)}
        for node in frame:
            if isinstance(node, ast.Name) and node.id in given:
                change = _follow(tree, node)[1]
                if change:
                    fix = "work on a copy: `dict(call.arguments)`, `list(episode.turns)`"
                    yield tree.problem(change, "input-mutation", f"{shortened(node.id)!r} is changed in place", fix)
