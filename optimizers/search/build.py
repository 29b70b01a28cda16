"""Which search a run has: the flag, and the search made from it."""

from __future__ import annotations

import pkgutil

from optimizers.config import ConfigError
from optimizers.search.meta_harness import MetaHarness
from optimizers.search.protocol import Bench, HarnessSearch


def build_search(method: str, bench: Bench) -> HarnessSearch:
    """Makes the search that the flag asks for.

    Args:
        method: ``meta-harness`` or ``module:Class``.
        bench: What it works with.

    Raises:
        ConfigError: It cannot be imported, or is no search.
    """
    if method == "meta-harness":
        return MetaHarness(bench)
    if ":" not in method:
        raise ConfigError(f"unknown --search.method {method!r}; use meta-harness, or module:Class")
    try:
        make = pkgutil.resolve_name(method)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import --search.method {method!r}: {error}") from error
    search: HarnessSearch = make(bench)
    for name in ("propose", "iterate"):
        if not callable(getattr(search, name, None)):
            raise ConfigError(f"--search.method {method!r} made a {type(search).__name__}, which has no method {name}")
    return search
