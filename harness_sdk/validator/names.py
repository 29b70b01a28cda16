"""Rules on names: what a name may stand for, and what it may not be made to stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness_sdk.validator import attributes, forms, imports, templates
from harness_sdk.validator.allowed import ALL_BUILTINS, BUILTINS, MODULES, SPECIAL_BUILTINS, SPECIAL_METHODS
from harness_sdk.validator.report import Problem, shortened
from harness_sdk.validator.tree import Tree, decorator_names, is_definition

_ADVICE = {
    "print": "nothing reads what a harness prints; put the text into a message or drop the line",
    "open": "a harness has no files; write the data into the source as a constant",
    "input": "a harness has no user; read what the model wrote from the completion",
    "setattr": "assign `self.name = value`",
    "delattr": "assign `self.name = None`",
    "vars": "name the attributes you need",
    "dir": "name the attributes you need",
    "id": "compare with `==`, or number things with `enumerate`; addresses differ from run to run",
    "hash": "use the value itself as the key; hashes differ from run to run",
    "BaseException": "catch `Exception` or a narrower one",
    "globals": "use a constant by its name",
    "locals": "use an f-string or a dict that you fill yourself",
    "breakpoint": "drop the line",
    "sys": "drop it; a harness has no interpreter settings",
}


def check(tree: Tree) -> Iterator[Problem]:
    """Yields every problem with names, attributes and imports."""
    for node in tree.nodes:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from imports.check(tree, node)
            case ast.Name(ctx=ast.Load()):
                yield from _load(tree, node)
            case ast.Attribute():
                yield from attributes.check(tree, node, node.value, node.attr)
                if not isinstance(node.ctx, ast.Load):
                    yield from attributes.check_assignment(tree, node)
            case ast.keyword(arg=str(name)) if name.startswith("__"):
                yield attributes.dunder(tree, node, name)
            case ast.MatchClass(kwd_attrs=names):
                for name in names:
                    yield from attributes.check(tree, node, node.cls, name, instance=True)
            case ast.JoinedStr():
                yield from templates.check_spec(tree, node)
    for name, node in tree.bindings:
        yield from _binding(tree, name, node)


def _load(tree: Tree, node: ast.Name) -> Iterator[Problem]:
    name = node.id
    parent = tree.parents[node]
    if name.startswith("__"):
        yield attributes.dunder(tree, node, name)
    elif name in tree.imports:
        path = tree.imports[name]
        if path in MODULES and not (isinstance(parent, ast.Attribute) and parent.value is node):
            fix = f"use what you need of it: `{name}.…`"
            yield tree.problem(node, "module-value", f"module {shortened(name)!r} is used as a value", fix)
        else:
            yield from forms.check(tree, node, path)
    elif name in SPECIAL_BUILTINS:
        yield from _special(tree, node)
    elif name in BUILTINS or (name not in ALL_BUILTINS and tree.sees(node, name)):
        if name in tree.classes:
            yield from forms.check_class(tree, node)
    elif name in ALL_BUILTINS:
        fix = _ADVICE.get(name, "drop it; the listed built-ins are enough for a harness")
        yield tree.problem(node, "name", f"built-in {shortened(name)!r} may not be used", fix)
    elif not (name in tree.fields and node not in tree.owners):
        where = f"`self.{shortened(name)}`" if name in tree.fields else "define it in this file or import it"
        message = f"name {shortened(name)!r} is not defined here"
        locals_ = [tree.local_names.get(function, set()) for function in tree.enclosing(node)]
        yield tree.problem(node, "unknown-name", message, tree.hint(name, where, tree.module_names, *locals_, BUILTINS))


def _special(tree: Tree, node: ast.Name) -> Iterator[Problem]:
    """The built-ins that have one safe form each."""
    parent = tree.parents[node]
    call = parent if isinstance(parent, ast.Call) and parent.func is node else None
    outer = tree.parents.get(parent)
    match node.id:
        case "super":
            used = isinstance(outer, ast.Attribute) and outer.value is call
            if not (call and used and not call.args and not call.keywords):
                fix = "write `super().name(…)` inside a method"
                yield tree.problem(node, "super", "`super` is used in another form than `super().name`", fix)
        case "type":
            one = call is not None and len(call.args) == 1 and not isinstance(call.args[0], ast.Starred)
            named = one and isinstance(outer, ast.Attribute) and outer.attr == "__name__"
            if not named and node not in tree.annotations:
                fix = "use `isinstance(value, kind)`; for a text, `type(value).__name__`"
                yield tree.problem(node, "name", "`type` may only be used as `type(value).__name__`", fix)
        case "getattr" | "hasattr":
            yield from _getattr(tree, node, call)
        case "object":
            based = isinstance(parent, ast.ClassDef) and node in parent.bases
            if not based and node not in tree.annotations:
                yield tree.problem(node, "name", "`object` may only be a base class", "use None or a text as a marker")
        case _:
            if not ((is_definition(parent) or isinstance(parent, ast.ClassDef)) and node in parent.decorator_list):
                fix = f"write `@{node.id}` above a method"
                yield tree.problem(node, "name", f"`{node.id}` may only be used as a decorator", fix)


def _getattr(tree: Tree, node: ast.Name, call: ast.Call | None) -> Iterator[Problem]:
    args = call.args if call and not call.keywords else []
    if any(isinstance(arg, ast.Starred) for arg in args):
        args = []
    name = args[1] if 2 <= len(args) <= (3 if node.id == "getattr" else 2) else None
    if isinstance(name, ast.Constant) and isinstance(name.value, str) and call:
        yield from attributes.check(tree, call, args[0], name.value)
    else:
        fix = "write `value.name`, or give the attribute's name as a text"
        yield tree.problem(node, "name", f"`{node.id}` needs an attribute name written in the source", fix)


def _binding(tree: Tree, name: str, node: ast.AST) -> Iterator[Problem]:
    in_class = node in tree.class_scope
    importing = isinstance(node, ast.Import | ast.ImportFrom)
    if name.startswith("__"):
        if not (in_class and is_definition(node)):
            yield attributes.dunder(tree, node, name)
        elif name not in SPECIAL_METHODS:
            names = ", ".join(sorted(SPECIAL_METHODS))
            fix = f"use an ordinary method; allowed are {names}"
            message = f"special method {shortened(name)!r} may not be defined"
            yield tree.problem(node, "special-method", message, fix)
        return
    own = isinstance(node, ast.ClassDef) and isinstance(tree.parents[node], ast.Module)
    if name in tree.classes and not own:  # the rules on classes go by their names
        fix = f"use another name than the class {shortened(name)!r}"
        message = f"class name {shortened(name)!r} is given another meaning"
        yield tree.problem(node, "rebinding", message, fix)
    if in_class and not isinstance(node, ast.ClassDef):
        return
    if name in ALL_BUILTINS and not (importing and tree.imports.get(name, "").startswith("__future__")):
        fix = f"use another name, for example `{name}_` or `the_{name}`"
        message = f"built-in {shortened(name)!r} is given another meaning"
        yield tree.problem(node, "rebinding", message, fix)
    elif name in tree.imports and not importing:
        fix = f"use another name than the imported {shortened(name)!r}"
        message = f"imported name {shortened(name)!r} is given another meaning"
        yield tree.problem(node, "rebinding", message, fix)
    elif name in ("self", "cls") and not _first_parameter(tree, node):
        fix = "keep this name for the first parameter of a method"
        yield tree.problem(node, "rebinding", f"{name!r} is bound to something else than the instance or class", fix)


def _first_parameter(tree: Tree, node: ast.AST) -> bool:
    arguments = tree.parents[node]
    if not (isinstance(node, ast.arg) and isinstance(arguments, ast.arguments)):
        return False
    method = tree.parents[arguments]
    first = [*arguments.posonlyargs, *arguments.args][:1]
    if not (first and first[0] is node and is_definition(method) and tree.method_class(method)):
        return False
    return ("classmethod" if node.arg == "cls" else "self") == (
        "classmethod" if "classmethod" in decorator_names(tree, method) else "self"
    ) and "staticmethod" not in decorator_names(tree, method)
