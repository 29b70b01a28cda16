"""Rules on format strings: `str.format` walks attributes by itself, so its template must be known.

f-strings need no rule of their own, their fields are ordinary expressions; only their field widths are bounded here.
"""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from functools import lru_cache

from harness_sdk.validator.allowed import INTERNALS, MAX_LENGTH
from harness_sdk.validator.report import Problem, shortened
from harness_sdk.validator.tree import Tree


def check_call(tree: Tree, node: ast.AST, base: ast.expr, name: str) -> Iterator[Problem]:
    """Yields what is wrong with ``base.format`` or ``base.format_map``."""
    if isinstance(base, ast.Name) and base.id == "self" and name in tree.method_names:
        return
    text = _template(tree, base)
    if text is None:
        fix = "use an f-string, or call it on a text constant that is never reassigned"
        yield tree.problem(node, "format-string", f"`.{name}` is called on a text that is not known here", fix)
    else:
        yield from _format_fields(tree, node, text)


def _template(tree: Tree, base: ast.expr) -> str | None:
    """Returns a text that is a literal or a constant bound once, else None."""
    value: ast.expr | None = base
    if isinstance(base, ast.Name) and tree.counts[base.id] == 1:
        value = tree.constants.get(base.id)
    elif isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
        found = tree.values.get(base.attr, [])
        owned = base.value.id in ("self", "cls") or base.value.id in tree.classes
        value = (
            found[0]
            if owned and tree.field_counts[base.attr] == len(found) == 1 and base.attr not in tree.stores
            else None
        )
    return _literal_text(tree, value)


def _literal_text(tree: Tree, value: ast.expr | None) -> str | None:
    """Returns a text written out, also through `strip`, `dedent` and `+`, which keep or drop whole characters."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _literal_text(tree, left), _literal_text(tree, right)
            return first + second if first is not None and second is not None else None
        case ast.Call(func=ast.Attribute(value=inner, attr="strip" | "lstrip" | "rstrip"), args=[], keywords=[]):
            return _literal_text(tree, inner)
        case ast.Call(args=[inner], keywords=[]) if tree.called(value) == "textwrap.dedent":
            return _literal_text(tree, inner)
    return None


def _format_fields(tree: Tree, node: ast.AST, text: str) -> Iterator[Problem]:
    for rule, message, fix in _bad_fields(text):
        yield tree.problem(node, rule, message, fix)


@lru_cache(maxsize=64)
def _bad_fields(text: str) -> tuple[tuple[str, str, str], ...]:
    """Returns rule, message and fix for each field of a format string that may not be."""
    try:
        parsed = list(string.Formatter().parse(text))
        inner = [part for _, _, spec, _ in parsed for part in string.Formatter().parse(spec or "")]
    except ValueError as error:
        fix = "write literal braces twice: `{{` and `}}`"
        return (("format-string", f"the format string is malformed: {error}", fix),)
    found = []
    for _, name, spec, _ in [*parsed, *inner]:
        attributes = (name or "").replace("]", ".").replace("[", ".").split(".")[1:]
        bad = [part for part in attributes if part.startswith("_") or part in INTERNALS or part == "split"]
        if bad:
            message = f"the format field {shortened(name)!r} reaches {shortened(bad[0])!r}"
            found.append(("format-string", message, "pass the value itself: `{name}`"))
        if _wide(spec or ""):
            found.append(("big-constant", "the field is wider than a million", "use a smaller width"))
    return tuple(found)


def check_spec(tree: Tree, node: ast.JoinedStr) -> Iterator[Problem]:
    """Yields what is wrong with the format spec in an f-string's field."""
    if not isinstance(tree.parents[node], ast.FormattedValue):
        return
    for part in node.values:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and _wide(part.value):
            yield tree.problem(node, "big-constant", "the field is wider than a million", "use a smaller width")


def _wide(spec: str) -> bool:
    digits = "".join(c if c.isdecimal() else " " for c in spec).split()
    return any(len(run) > 7 or int(run) > MAX_LENGTH for run in digits)
