"""The rules by id, one sentence each. `docs/validator.md` lists the same ids and sentences; a test keeps them equal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

RULES: Mapping[str, str] = MappingProxyType(
    {
        "source-text": "Every reader sees the source alike: no control or direction characters, no coding but utf-8.",
        "source-size": "The source stays within its bounds of bytes, syntax nodes and nesting.",
        "syntax-error": "The source is valid Python; it is compiled, not run.",
        "syntax": "Only plain synchronous Python is used: no async, with, global, except*, or matrix product.",
        "big-constant": "No constant expression builds a huge number, text, range or field width.",
        "import": "Only the listed modules are imported.",
        "import-placement": "Imports stand at the top level of the file.",
        "module-attribute": "Only the listed names of a module are used.",
        "module-value": "A module is only ever used as `module.name`.",
        "dunder": "No name, attribute or keyword begins with two underscores, save the listed methods.",
        "name": "Only the listed built-in names are used.",
        "unknown-name": "Every name is defined in the file, imported, or a listed built-in.",
        "attribute": "Only attributes of plain values, of the SDK's types, and those the file defines are used.",
        "private-attribute": "`_private` attributes are used on `self` or `cls` only, and defined in the file.",
        "format-string": "`str.format` is called on a text written in the file whose fields reach no hidden attribute.",
        "rebinding": "No built-in, imported or class name, nor `self`, is given another meaning.",
        "redefined": "A class or module name is defined once.",
        "attribute-assignment": "Attributes are assigned on `self` only, in methods, and never hooks or limits.",
        "input-mutation": "What a hook is given is not changed.",
        "shared-state": "Class attributes and module names are constants: never changed, not handed out if mutable.",
        "import-time": "Nothing runs at import but definitions and constant expressions.",
        "default-argument": "Default arguments are immutable constants.",
        "decorator": "Only the listed decorators are used.",
        "base-class": "A class extends `Harness` or its child, `NamedTuple`, `TypedDict`, an exception or nothing.",
        "class-placement": "Classes stand at the top level of the file.",
        "class-value": "A class is called, compared against or annotated with, not passed around or unbound.",
        "special-method": "Only the listed special methods are defined.",
        "super": "`super` is used as `super().name` only.",
        "exception": "Handlers name ordinary exceptions; nothing catches `BaseException`.",
        "endless-loop": "A `while True` loop has a way out.",
        "regex": "A constant pattern is a valid regular expression without nested unbounded repeats.",
        "random": "Random numbers come from the episode's seed.",
        "task-split": "A harness does not look at which split a task belongs to.",
        "harness-class": "The file has exactly one `Harness` subclass that no other extends, or the named one.",
        "hook-signature": "Hooks are plain methods with the parameters that `Harness` gives them.",
        "hook-name": "No method or class attribute that nothing uses is a misspelt hook or limit.",
        "hook-return": "A hook that must return something returns it.",
        "method-signature": "A method's first parameter is `self`, a class method's is `cls`.",
        "constructor": "`__init__` of the harness takes nothing but `self`.",
        "limit": "Limits are whole numbers in range, stop strings a tuple of non-empty texts, written out.",
        "prompt-text": "`system` and `instructions` are texts.",
        "prompt-attributes": "`prompt_attributes` is a tuple of names of class attributes that hold text.",
    }
)
