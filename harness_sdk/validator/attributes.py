"""Rules on attributes: a value's attribute is one of a plain value, of the SDK, or of the file itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness_sdk.validator import imports, templates
from harness_sdk.validator.allowed import ATTRIBUTES, INTERNALS, MODULES, PRIVATE_ATTRIBUTES
from harness_sdk.validator.hooks import DECLARED, HOOKS
from harness_sdk.validator.report import Problem, shortened
from harness_sdk.validator.tree import Tree, described


def check(
    tree: Tree, node: ast.expr | ast.MatchClass, base: ast.expr, name: str, instance: bool = False
) -> Iterator[Problem]:
    """Yields what is wrong with ``base.name``, however it is written (``instance``: in a class pattern)."""
    origin = None if instance else tree.origin(base)
    if name.startswith("__"):
        if not _dunder_form(tree, node, base, name):
            yield dunder(tree, node, name)
    elif origin is not None and origin in MODULES:
        yield from imports.check_member(tree, node, origin, name)
    elif name in INTERNALS:
        fix = "drop it; it leads into the interpreter"
        yield tree.problem(node, "attribute", f"attribute {name!r} may not be used", fix)
    elif name.startswith("_"):
        yield from _private(tree, node, base, name)
    elif name in ("format", "format_map"):
        yield from templates.check_call(tree, node, base, name)
    elif name not in ATTRIBUTES and name not in tree.fields:
        advice = "use an attribute of plain values or the SDK's types, or define it in this file"
        fix = tree.hint(name, advice, ATTRIBUTES, tree.fields)
        yield tree.problem(node, "attribute", f"attribute {shortened(name)!r} is not known", fix)
    elif name == "split" and _reads_split(tree, node, base):
        fix = "drop it; the same harness must behave alike on every split"
        yield tree.problem(node, "task-split", "the task's split is read", fix)
    if not instance and isinstance(base, ast.Name) and (base.id in tree.classes or base.id == "cls"):
        yield from _unbound(tree, node, base, name)


def dunder(tree: Tree, node: ast.AST, name: str) -> Problem:
    """Returns the problem with a name that begins with two underscores."""
    fix = "drop it; names that begin with two underscores belong to the interpreter"
    if name == "__name__":
        fix = "drop the `if __name__ == …` block; a harness file is never run as a program"
    elif name == "__class__":
        fix = "use `isinstance(value, kind)`; for a text, `type(value).__name__`"
    return tree.problem(node, "dunder", f"{shortened(name)!r} begins with two underscores", fix)


def _dunder_form(tree: Tree, node: ast.AST, base: ast.expr, name: str) -> bool:
    match base:
        case ast.Call(func=ast.Name(id="super"), args=[], keywords=[]):
            parent = tree.parents.get(node)
            return name in ("__init__", "__post_init__") and isinstance(parent, ast.Call) and parent.func is node
        case ast.Call(func=ast.Name(id="type"), args=[_], keywords=[]):
            return name == "__name__" and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    return False


def _private(tree: Tree, node: ast.AST, base: ast.expr, name: str) -> Iterator[Problem]:
    if name in PRIVATE_ATTRIBUTES:
        return
    own = isinstance(base, ast.Name) and (base.id in ("self", "cls") or base.id in tree.classes)
    own = own or (isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "super")
    if not own:
        fix = "give it a name without the underscore, or reach it through a method of its own class"
        message = f"private attribute {shortened(name)!r} is used on something else than `self`"
        yield tree.problem(node, "private-attribute", message, fix)
    elif name not in tree.fields:
        fix = tree.hint(name, "assign it in `__init__` or define the method", tree.fields)
        yield tree.problem(node, "private-attribute", f"{shortened(name)!r} is not defined in this file", fix)


def _unbound(tree: Tree, node: ast.AST, base: ast.Name, name: str) -> Iterator[Problem]:
    """A method taken from its class could be called on anything."""
    methods = tree.plain_methods
    if name in methods.get(base.id, tree.plain_names):
        message = f"method {shortened(name)!r} is taken from the class without an instance"
        yield tree.problem(node, "class-value", message, f"call `self.{shortened(name)}(…)`")


def _reads_split(tree: Tree, node: ast.AST, base: ast.expr) -> bool:
    """``task.split`` is a text; ``text.split`` is a method, called, or handed to ``map`` as ``str.split``."""
    parent = tree.parents.get(node)
    called = isinstance(node, ast.Attribute) and isinstance(parent, ast.Call) and parent.func is node
    return not called and not (isinstance(base, ast.Name) and base.id == "str")


def check_assignment(tree: Tree, node: ast.Attribute) -> Iterator[Problem]:
    """Yields what is wrong with assigning or deleting an attribute."""
    on_self = isinstance(node.value, ast.Name) and node.value.id == "self" and node in tree.owners
    if on_self and (node.attr in HOOKS or node.attr in DECLARED.limits or node.attr == "prompt_attributes"):
        fix = f"define `{node.attr}` in the class body; it is read from the class"
        yield tree.problem(node, "attribute-assignment", f"`self.{node.attr}` is part of the class", fix)
    elif not on_self and not _own_instance(tree, node.value):
        fix = "add a method to its class that assigns on `self`, and call that; or make a copy with `replace(value, …)`"
        if tree.origin(node):
            fix = "drop it; modules and classes that others share may not be changed"
        message = f"{described(node)} is assigned, on something else than `self`"
        yield tree.problem(node, "attribute-assignment", message, fix)


def _own_instance(tree: Tree, base: ast.expr) -> bool:
    """Whether a value is surely an instance of a class of the file: it is only ever assigned from a call of one."""
    if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name) and base.value.id == "self":
        places: list[ast.expr] = list(tree.stores.get(base.attr, []))
        if tree.field_counts[base.attr]:
            return False
    elif isinstance(base, ast.Name) and base in tree.owners:
        places = [node for node in tree.names_stored.get(base.id, []) if isinstance(node, ast.Name)]
        if len(places) != tree.counts[base.id]:
            return False
    else:
        return False
    values = [tree.assigned_values.get(place) for place in places]
    return bool(values) and all(
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in tree.classes
        and tree.counts[value.func.id] == 1
        for value in values
    )
