"""Loading harnesses: by reference (``module:Class``), from a file, from source text, or a class at hand.

A loaded harness knows its source and an id (a hash of the source), and opens a fresh session per episode. Trusted code
runs in this process; untrusted source is validated statically first and then lives in the cage.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from harness_sdk.harness import Harness
from harness_sdk.session import HarnessError, HarnessSession, LocalSession, described, file_of, line_in
from harness_sdk.sources import class_source, read_source, without_mark
from harness_sdk.validator import validate
from harness_sdk.validator.hooks import misspelt
from whale_env.errors import InputError
from whale_env.wording import did_you_mean

Opener = Callable[[int], Awaitable[HarnessSession]]


class HarnessLoadError(InputError):
    """A harness could not be loaded: no such file or class, an import that fails, or a failed validation."""


@dataclass(frozen=True, slots=True)
class LoadedHarness:
    """A harness ready to be rolled out.

    Attributes:
        id: Hash of the source and the class name: 128 bits, 32 hexadecimal digits.
        name: The class's name.
        source: Python source of the file that defines it, or of the class alone where it stands in no module.
        trusted: Whether it runs in this process.
    """

    id: str
    name: str
    source: str = field(repr=False)
    trusted: bool
    _open: Opener = field(repr=False, compare=False)

    async def open(self, seed: int) -> HarnessSession:
        """Opens a fresh harness for one episode.

        Raises:
            HarnessError: Its constructor fails, or its limits are not valid.
        """
        return await self._open(seed)


def load(
    ref: str | Path | type[Harness], trusted: bool = True, *, env: str = "", allow_uncaged: bool = False
) -> LoadedHarness:
    """Loads a harness.

    Args:
        ref: ``module:Class``, ``file.py:Class``, ``file.py`` with exactly one `Harness` subclass, or the class itself,
            which may stand in a script or a notebook cell.
        trusted: True runs the code in this process, as any import does. False validates and cages it; then only files
            can be loaded.
        env: The domain's name, for the validator.
        allow_uncaged: Whether untrusted code may run without a cage where the kernel has none.

    Returns:
        The harness.

    Raises:
        HarnessLoadError: It cannot be loaded; the message says why and what to do.
    """
    if isinstance(ref, type):
        return _class(ref, trusted)
    text = str(ref)
    target, _, class_name = text.partition(":") if not _is_windows_path(text) else (text, "", "")
    if target.endswith(".py"):
        path = Path(target)
        try:
            source = read_source(path)
        except FileNotFoundError:
            hint = did_you_mean(path.name, [file.name for file in path.parent.glob("*.py")], cutoff=0.75)
            raise HarnessLoadError(f"no harness file {target!r}.{hint}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise HarnessLoadError(f"cannot read harness file {target!r}: {error}") from None
        if not trusted:
            return load_source(source, class_name, env=env, allow_uncaged=allow_uncaged)
        return _trusted(_import_file(path), class_name, source, text)
    if not trusted:
        trust = "if it is your own code, trust it with trusted=True (check: --trusted)"
        raise HarnessLoadError(f"untrusted harnesses are loaded from a .py file, not from {text!r}; {trust}")
    if not class_name:
        raise HarnessLoadError(f"{text!r} is neither a .py file nor module:Class")
    try:
        module = importlib.import_module(target)
    except Exception as error:
        raise HarnessLoadError(f"cannot import {target!r}: {type(error).__name__}: {error}") from error
    return _trusted(module, class_name, None, text)


def load_source(source: str, class_name: str = "", *, env: str = "", allow_uncaged: bool = False) -> LoadedHarness:
    """Loads an untrusted harness from source text: validates it, then cages each episode.

    Args:
        source: Python source.
        class_name: The `Harness` subclass; empty takes the only one there is.
        env: The domain's name, for the validator.
        allow_uncaged: Whether it may run without a cage where the kernel has none.

    Raises:
        HarnessLoadError: It does not validate; the message is the validator's whole report.
    """
    source = without_mark(source)
    report = validate(source, env, class_name)
    if not report.ok or report.class_name is None:
        raise HarnessLoadError(f"the harness does not validate:\n{report}")
    name = report.class_name

    async def opened(seed: int) -> HarnessSession:
        from harness_sdk.sandbox import shared_pool

        return await shared_pool(allow_uncaged=allow_uncaged).open(source, name, seed=seed)

    return LoadedHarness(harness_id(source, name), name, source, False, opened)


def harness_id(source: str, class_name: str) -> str:
    """Returns the id of a harness: a hash of its source and class name."""
    return hashlib.sha256(f"{class_name}\n{source}".encode("utf-8", "replace")).hexdigest()[:32]


def _trusted(module: ModuleType, class_name: str, source: str | None, ref: str) -> LoadedHarness:
    classes = {name: item for name, item in vars(module).items() if inspect.isclass(item) and issubclass(item, Harness)}
    if class_name:
        if class_name not in classes:
            hint = did_you_mean(class_name, classes)
            raise HarnessLoadError(f"{ref!r}: no Harness subclass {class_name!r}.{hint}")
        chosen = classes[class_name]
    else:
        own = [item for item in classes.values() if item.__module__ == module.__name__ and item is not Harness]
        own = [item for item in own if not any(item in other.__mro__[1:] for other in own)]
        if len(own) != 1:
            names = ", ".join(item.__name__ for item in own) or "none"
            raise HarnessLoadError(f"{ref!r} defines {len(own)} Harness subclasses ({names}); name one as {ref}:Class")
        chosen = own[0]

    # Without a file, the one that defines the class, which need not be the module that offers it.
    return _local(chosen, source if source is not None else _source(chosen))


def _class(harness: type[Harness], trusted: bool) -> LoadedHarness:
    """Loads a class at hand."""
    name = harness.__qualname__
    if not issubclass(harness, Harness) or harness is Harness:
        raise HarnessLoadError(f"{name} is no subclass of Harness")
    if not trusted:
        raise HarnessLoadError(f"untrusted harnesses are loaded from a .py file; {name} runs in this process already")
    return _local(harness, _source(harness))


def _source(harness: type[Harness]) -> str:
    try:
        return class_source(harness)
    except (OSError, TypeError):
        raise HarnessLoadError(
            f"{harness.__qualname__} has no source to know it by; define it in a file or a notebook cell"
        ) from None


def _local(chosen: type[Harness], source: str) -> LoadedHarness:
    parents = [kind for kind in chosen.__mro__[1:] if issubclass(kind, Harness) and kind is not Harness]
    elsewhere = [_source(kind) for kind in parents if kind.__module__ != chosen.__module__]
    for name, meant in misspelt(chosen, [source, *elsewhere]):
        raise HarnessLoadError(
            f"nothing uses {chosen.__name__}.{name}. Did you mean {meant!r}? If it is yours, use it, or give it a name "
            "of its own"
        )

    async def opened(seed: int) -> HarnessSession:
        try:
            return LocalSession(chosen())
        except HarnessError:
            raise
        except Exception as error:
            raise HarnessError("__init__", described(error, file_of(chosen))) from error

    return LoadedHarness(harness_id(source, chosen.__name__), chosen.__name__, source, True, opened)


def _import_file(path: Path) -> ModuleType:
    name = f"whale_harness_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise HarnessLoadError(f"cannot load {path} as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        number = error.lineno if isinstance(error, SyntaxError) else line_in(error, module.__file__)
        line = f" (line {number})" if number else ""
        raise HarnessLoadError(f"{path} cannot be imported{line}: {type(error).__name__}: {error}") from error
    return module


def _is_windows_path(text: str) -> bool:
    return len(text) > 2 and text[1] == ":" and text[2] in "\\/" and text.count(":") == 1
