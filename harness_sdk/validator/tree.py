"""A parsed source with the facts that the rules ask for: parents, owners, imports, definitions.

Built once, in linear time and without recursion, so that no source is too deep to be judged. Judges nothing itself.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeGuard

from harness_sdk.validator.allowed import (
    COMPREHENSIONS,
    MAX_DEPTH,
    MAX_NODES,
    MODULES,
    SDK_MODULES,
)
from harness_sdk.validator.report import Problem, shortened
from whale_env.wording import did_you_mean

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Bound: TypeAlias = tuple[str, ast.AST]

_RECORD_BASES = {"typing.NamedTuple", "typing.TypedDict"}
_SILENT = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.type_ignore)
_NEWLINE = re.compile(r"\r\n|\r|\n")
_MAX_HINTS = 64
_MAX_HINTED_NAME = 40


class TooComplex(Exception):
    """The tree exceeds its bounds; carries the node at which it does, and why."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node = node


@dataclass(slots=True)
class Tree:
    """A source and its facts.

    Attributes:
        lines: The source lines.
        nodes: Every node but contexts and operators, parents first.
        parents: The parent of each node but the module.
        owners: The innermost function in whose body a node runs; absent when it runs at import.
        frames: The nodes of each function's own frame.
        class_scope: Nodes that bind a name in a class body.
        annotations: Nodes within annotations.
        imports: Local name → dotted origin (``re``, ``collections.Counter``).
        module_names: Names that are bound at the top level.
        local_names: Names that each function binds itself.
        bindings: Every binding of a name, in source order.
        classes: Top-level classes by name.
        constants: Module-level names with a value.
        fields: Attribute names that the file defines.
        counts: How often each name is bound; ``field_counts``: in class bodies.
        stores: Attribute name → where it is assigned or deleted.
        names_stored: Name → the nodes that bind it.
        assigned_values: Assignment target → its value.
        values: Class attribute name → its values, over all classes.
        methods: Class name → its methods; ``plain_methods``: those without a decorator.
        method_names: All method names; ``plain_names``: those without a decorator.
    """

    lines: list[str]
    nodes: list[ast.AST] = field(default_factory=list)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    owners: dict[ast.AST, Function] = field(default_factory=dict)
    frames: dict[Function, list[ast.AST]] = field(default_factory=dict)
    class_scope: set[ast.AST] = field(default_factory=set)
    annotations: set[ast.AST] = field(default_factory=set)
    imports: dict[str, str] = field(default_factory=dict)
    module_names: set[str] = field(default_factory=set)
    local_names: dict[Function, set[str]] = field(default_factory=dict)
    bindings: list[Bound] = field(default_factory=list)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    field_counts: Counter[str] = field(default_factory=Counter)
    stores: dict[str, list[ast.Attribute]] = field(default_factory=dict)
    names_stored: dict[str, list[ast.AST]] = field(default_factory=dict)
    assigned_values: dict[ast.expr, ast.expr] = field(default_factory=dict)
    values: dict[str, list[ast.expr]] = field(default_factory=dict)
    methods: dict[str, set[str]] = field(default_factory=dict)
    plain_methods: dict[str, set[str]] = field(default_factory=dict)
    method_names: set[str] = field(default_factory=set)
    plain_names: set[str] = field(default_factory=set)
    _hints: dict[str, str] = field(default_factory=dict)

    @property
    def module(self) -> ast.Module:
        """The root."""
        root = self.nodes[0]
        assert isinstance(root, ast.Module)
        return root

    def problem(self, node: ast.AST, rule: str, message: str, fix: str) -> Problem:
        """Returns a problem at a node (or at its nearest ancestor that has a position)."""
        while not hasattr(node, "lineno") and node in self.parents:
            node = self.parents[node]
        line = getattr(node, "lineno", 1)
        quote = self.lines[line - 1] if line <= len(self.lines) else ""
        offset = getattr(node, "col_offset", 0)
        if not quote.isascii():
            offset = len(quote.encode("utf-8", "replace")[:offset].decode("utf-8", "ignore"))
        return Problem(line, offset + 1, rule, message, fix, quote)

    def hint(self, name: str, otherwise: str, *known: Collection[str]) -> str:
        """Returns a "Did you mean" for a name before the other advice. Bounded in total work."""
        if name not in self._hints:
            if len(self._hints) >= _MAX_HINTS or len(name) > _MAX_HINTED_NAME:
                return otherwise
            meant = did_you_mean(name, sorted(set().union(*known)), cutoff=0.75)
            self._hints[name] = f"{meant.strip()} Otherwise: " if meant else ""
        return self._hints[name] + otherwise

    def origin(self, node: ast.AST) -> str | None:
        """Returns the dotted origin of an expression that starts at an import (``re.compile``), else None."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return None
        path = self.imports[node.id]
        for name in reversed(names):
            path = canonical(f"{path}.{name}")
        return path

    def called(self, node: ast.Call) -> str | None:
        """Returns what a call calls: an origin, or a plain name that the file does not define."""
        if isinstance(node.func, ast.Name) and node.func.id not in self.imports:
            return node.func.id
        return self.origin(node.func)

    def enclosing(self, node: ast.AST) -> Iterator[Function]:
        """Yields the functions around a node, innermost first."""
        while node in self.owners:
            node = self.owners[node]
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield node

    def sees(self, node: ast.AST, name: str) -> bool:
        """Whether a name that a node uses is bound where the node can see it."""
        if name in self.module_names:
            return True
        return any(name in self.local_names.get(function, ()) for function in self.enclosing(node))

    def method_class(self, function: ast.AST) -> ast.ClassDef | None:
        """Returns the class whose method a function is, if it is one."""
        parent = self.parents.get(function)
        return parent if isinstance(parent, ast.ClassDef) else None


def canonical(path: str) -> str:
    """Returns the one name of an SDK object that can be imported from several modules."""
    module, _, name = path.rpartition(".")
    return f"harness_sdk.{name}" if module in SDK_MODULES and path not in MODULES else path


def is_definition(node: ast.AST | None) -> TypeGuard[Definition]:
    """Whether a node is a ``def``."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def decorator_names(tree: Tree, node: Definition | ast.ClassDef) -> list[str]:
    """Returns the decorators' names or origins; an empty string for anything else."""
    names = []
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        plain = call.id if isinstance(call, ast.Name) and call.id not in tree.imports else None
        names.append(plain or tree.origin(call) or "")
    return names


def assigned_pairs(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields target and value of an assignment with a value, displays taken apart: ``A, B = 1, 2``."""
    if isinstance(statement, ast.AnnAssign) and statement.value:
        yield statement.target, statement.value
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        assert isinstance(statement, ast.Assign)
        value = statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            yield from zip(target.elts, value.elts, strict=True)
        else:
            yield target, value


def named_values(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Returns the values that plain names are given by the assignments of a module or class body."""
    pairs = (pair for statement in body for pair in assigned_pairs(statement))
    return {target.id: value for target, value in pairs if isinstance(target, ast.Name)}


def makes_fields(tree: Tree, node: ast.ClassDef) -> bool:
    """Whether annotated class attributes are instance fields: dataclasses, named tuples, typed dicts."""
    bases = {tree.origin(base) for base in node.bases}
    return "dataclasses.dataclass" in decorator_names(tree, node) or bool(bases & _RECORD_BASES)


def build(module: ast.Module, source: str) -> Tree:
    """Collects the facts of a module.

    Args:
        module: The parsed source.
        source: The source.

    Returns:
        The tree.

    Raises:
        TooComplex: It has more nodes or nests deeper than allowed.
    """
    tree = Tree(_NEWLINE.split(source))
    stack: list[_Visit] = [_Visit(module, None, None, None, False, 0)]
    while stack:
        visit = stack.pop()
        node, parent, owner, scope, annotation, depth = visit
        if parent is not None:
            tree.parents[node] = parent
        if owner is not None:
            tree.owners[node] = owner
            tree.frames.setdefault(owner, []).append(node)
        if annotation:
            tree.annotations.add(node)
        tree.nodes.append(node)
        if depth > MAX_DEPTH or len(tree.nodes) > MAX_NODES:
            why = f"nests deeper than {MAX_DEPTH}" if depth > MAX_DEPTH else f"has more than {MAX_NODES} syntax nodes"
            raise TooComplex(node if hasattr(node, "lineno") else parent or node, why)
        _collect(tree, node, scope)
        stack.extend(reversed(list(_children(visit))))
    for klass in tree.classes.values():
        methods = [item for item in klass.body if is_definition(item)]
        tree.methods[klass.name] = {item.name for item in methods}
        tree.method_names |= tree.methods[klass.name]
        tree.plain_methods[klass.name] = {item.name for item in methods if not item.decorator_list}
        body = [item for item in klass.body if not (isinstance(item, ast.AnnAssign) and makes_fields(tree, klass))]
        for name, value in named_values(body).items():
            tree.values.setdefault(name, []).append(value)
        tree.plain_names |= tree.plain_methods[klass.name]
    tree.constants.update(named_values(module.body))
    for node in tree.nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target, value in assigned_pairs(node):
                tree.assigned_values[target] = value
    return tree


class _Visit(NamedTuple):
    node: ast.AST
    parent: ast.AST | None
    owner: Function | None
    scope: ast.ClassDef | None
    annotation: bool
    depth: int


def _children(visit: _Visit) -> Iterator[_Visit]:
    node = visit.node
    scope = None if isinstance(node, (*COMPREHENSIONS, ast.arguments)) else visit.scope
    for name in node._fields:
        value = getattr(node, name, None)
        inside = visit.annotation or name in ("annotation", "returns")
        owner = visit.owner
        if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            owner, scope = node, None
        elif name == "body" and isinstance(node, ast.ClassDef):
            scope = node
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST) and not isinstance(child, _SILENT):
                yield _Visit(child, node, owner, scope, inside, visit.depth + 1)
        scope = None if isinstance(node, (*COMPREHENSIONS, ast.arguments)) else visit.scope


def _collect(tree: Tree, node: ast.AST, scope: ast.ClassDef | None) -> None:
    for name in _bound_names(node):
        tree.bindings.append((name, node))
        tree.counts[name] += 1
        tree.names_stored.setdefault(name, []).append(node)
        if scope is not None:
            tree.fields.add(name)
            tree.field_counts[name] += 1
            tree.class_scope.add(node)
            continue
        owner = tree.parents[tree.parents[node]] if isinstance(node, ast.arg) else tree.owners.get(node)
        if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            tree.local_names.setdefault(owner, set()).add(name)
        else:
            tree.module_names.add(name)
    if isinstance(node, ast.Import | ast.ImportFrom):
        _collect_import(tree, node)
    elif isinstance(node, ast.ClassDef) and isinstance(tree.parents.get(node), ast.Module):
        tree.classes[node.name] = node
    elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        tree.stores.setdefault(node.attr, []).append(node)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            tree.fields.add(node.attr)
    elif isinstance(node, ast.Call) and tree.called(node) == "collections.namedtuple":
        for text in node.args[1:2]:
            parts = text.elts if isinstance(text, ast.List | ast.Tuple) else [text]
            words = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
            tree.fields.update(" ".join(words).replace(",", " ").split())


def _bound_names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return (name,)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return (name,)
        case ast.MatchMapping(rest=str(name)):
            return (name,)
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return tuple(names)
        case ast.Import(names=aliases):
            return tuple(alias.asname or alias.name.split(".")[0] for alias in aliases)
        case ast.ImportFrom(names=aliases):
            return tuple(alias.asname or alias.name for alias in aliases if alias.name != "*")
    return ()


def _collect_import(tree: Tree, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if node.module != "__future__":
                name = alias.asname or alias.name
                tree.imports[name] = canonical(f"{'.' * node.level}{node.module or ''}.{alias.name}")
        return
    for alias in node.names:
        local = alias.asname or alias.name.split(".")[0]
        tree.imports[local] = alias.name if alias.asname else local


def described(node: ast.AST) -> str:
    """Returns a short source text of a node for a message."""
    match node:
        case ast.Name(id=name):
            return shortened(name)
        case ast.Attribute(attr=name, value=ast.Name(id=base)):
            return shortened(f"{base}.{name}")
        case ast.Attribute(attr=name):
            return shortened(f"….{name}")
    return type(node).__name__
