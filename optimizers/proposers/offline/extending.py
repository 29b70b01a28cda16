"""Source of a child that keeps its parent: the parent's file, and below it a subclass with what a mechanism changes.

What changes is read off two renderings of `optimizers.proposers.offline.templates`, before and after: a hook is
overridden, with the helpers that it calls, where they differ, and all else stays the parent's own.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from harness_sdk.harness import Harness

_HOOKS = ("tools", "pack", "parse", "act", "recover", "stop")

_WITH = {"max_failures": "recover"}
"""A hook without which an attribute does nothing: one that gives up makes more tries useless."""


def extend(parent: str, parent_class: str, before: str, after: str, class_name: str) -> str | None:
    """Writes a child of any harness.

    Args:
        parent: The parent's source.
        parent_class: Its class.
        before: A rendered harness without the change.
        after: The same with it.
        class_name: The child's class.

    Returns:
        The parent's source with the child below it, or None where the parent has a use of its own for a name that the
        change needs.
    """
    module, old, new = ast.parse(parent), _only_class(before), _only_class(after)
    attributes = {name: text for name, text in new[0].items() if old[0].get(name) != text}
    for name in old[0].keys() - new[0].keys():  # a limit that the change lifts
        attributes[name] = repr(getattr(Harness, name))
    changed: set[str] = set()
    for hook in _HOOKS:
        used = _reached(hook, new[1])
        if any(old[1].get(name) != new[1][name] for name in used) or any(
            _WITH.get(name) == hook for name in attributes
        ):
            changed |= used
    named = {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    named |= {node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own = {*changed, *attributes, class_name} - {*_HOOKS, *vars(Harness)}
    if own & named or not (changed or attributes):
        return None
    overridden = ", ".join(name for name in new[1] if name in changed & set(_HOOKS)) or ", ".join(attributes)
    body = [f'    """{parent_class} with another {overridden}."""', ""]
    body += [f"    {name} = {text}" for name, text in attributes.items()]
    body += ["\n" + text for name, text in new[1].items() if name in changed]
    text = "\n".join(body)
    return _with_imports(parent, module, after, text) + f"\n\nclass {class_name}({parent_class}):\n{text}\n"


def _only_class(source: str) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the attributes and the methods of a rendered harness by name, as source."""
    kind = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    lines = source.splitlines()
    attributes: dict[str, str] = {}
    methods: dict[str, str] = {}
    for node in kind.body:
        if isinstance(node, ast.FunctionDef):
            methods[node.name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            attributes[node.targets[0].id] = ast.get_source_segment(source, node.value) or ""
    return attributes, methods


def _reached(hook: str, methods: Mapping[str, str]) -> set[str]:
    """Returns a hook and the methods that it calls, directly or not."""
    found, todo = set[str](), [hook]
    while todo:
        name = todo.pop()
        if name in methods and name not in found:
            found.add(name)
            todo += [other for other in methods if f"self.{other}(" in methods[name]]
    return found


def _with_imports(parent: str, module: ast.Module, after: str, text: str) -> str:
    """Returns the parent's source with the imports that a text below it needs."""
    bound = {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    used = {node.id for node in ast.walk(ast.parse("class _:\n" + text)) if isinstance(node, ast.Name)}
    missing = []
    for node in ast.parse(after).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias for alias in node.names if alias.name in used - bound]
            if names and isinstance(node, ast.ImportFrom):
                missing.append(ast.unparse(ast.ImportFrom(node.module, names, node.level)))
            elif names:
                missing.append(ast.unparse(ast.Import(names)))
    imports = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
    at = max((node.end_lineno or 0 for node in imports), default=0)
    lines = parent.rstrip("\n").split("\n")
    return "\n".join([*lines[:at], *missing, *lines[at:]]) + "\n"
