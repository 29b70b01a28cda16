"""What a harness class declares, read off `Harness` itself, and which names were probably meant to be one of these.

A misspelt hook is legal Python that never runs, so it is looked for by name: one near a hook's or a limit's that
nothing in the file uses. Used for untrusted sources by the rules, and for trusted ones when they are loaded.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

from harness_sdk.harness import Harness
from harness_sdk.session import Limits

HOOKS: Mapping[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(value).parameters)
    for name, value in vars(Harness).items()
    if inspect.isfunction(value) and not name.startswith("_")
}
"""Hook name → parameter names, ``self`` included."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a harness declares as class attributes.

    Attributes:
        limits: Names of the limits.
        texts: Names of the prompt texts.
    """

    limits: frozenset[str]
    texts: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """All of them, with the list of what may be changed."""
        return self.limits | self.texts | {"prompt_attributes"}


DECLARED = Declared(
    frozenset(f.name for f in fields(Limits)),
    frozenset(name for name, value in vars(Harness).items() if isinstance(value, str) and not name.startswith("_")),
)


def used_names(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Returns the names that a source reads as attributes, ``getattr(x, "name")`` included."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    return frozenset(found)


def meant_hook(name: str, used: frozenset[str]) -> str | None:
    """Returns the hook that a method's name is a slip of the pen for, if nothing uses the method."""
    if name in HOOKS or name in used:
        return None
    return next((hook for hook in HOOKS if _near(name, hook)), None)


def meant_attribute(name: str, used: frozenset[str]) -> str | None:
    """Returns the limit or prompt text that a class attribute's name is a slip of the pen for, if nothing uses it."""
    if name in DECLARED.names or name in used:
        return None
    return next((known for known in sorted(DECLARED.names) if _near_attribute(name, known)), None)


def misspelt(harness: type[Harness], sources: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the class's own names that do nothing, and what was meant.

    Args:
        harness: A class that was loaded.
        sources: The texts that define it and its parents.
    """
    used = used_names(node for source in sources for node in ast.walk(ast.parse(source)))
    own = [kind for kind in harness.__mro__ if issubclass(kind, Harness) and kind is not Harness]
    for name, value in ((name, value) for kind in own for name, value in vars(kind).items()):
        function = inspect.isroutine(value) or isinstance(value, property)
        meant = meant_hook(name, used) if function else meant_attribute(name, used)
        if meant:
            yield name, meant


def _near(name: str, hook: str) -> bool:
    """Whether a name differs from a hook by case, one letter too many or too few, or two letters swapped."""
    if name.startswith("_"):
        return False
    name = name.lower().replace("_", "")
    if len(name) > len(hook) + 1:
        return False
    if name == hook or sorted(name) == sorted(hook):
        return True
    longer, shorter = (name, hook) if len(name) > len(hook) else (hook, name)
    dropped = any(longer[:i] + longer[i + 1 :] == shorter for i in range(len(longer)))
    if dropped:
        return len(longer) > 4 or name == f"{hook}s"
    changed = sum(a != b for a, b in zip(name, hook, strict=False))
    return len(name) == len(hook) > 4 and changed == 1


def _near_attribute(name: str, known: str) -> bool:
    plural = name in (known + "s", known.removesuffix("s")) or name.replace("_", "") == known.replace("_", "")
    return name != known and (plural or name.lower() == known or (len(name) > 5 and sorted(name) == sorted(known)))
