"""Makes ``gymnasium.make("whale/Chess-v0")`` work without an import of ours, as Gymnasium's plug-ins did.

Gymnasium 1.0 stopped reading its own ``gymnasium.envs`` entry points. So a one-line ``.pth`` file imports this module
when Python starts; it costs nothing until somebody imports Gymnasium, and then reads our entry point of that group.
Only the standard library is used; nothing of `whale_env` is imported before Gymnasium is.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class AfterGymnasium(MetaPathFinder, Loader):
    """Lets Gymnasium import as always, then registers our environments."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Steps in for ``gymnasium`` only, and only once."""
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leaves creation to the real loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs Gymnasium's own code, then our plug-in."""
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if "whale_env" in sys.modules:  # it is being imported just now, and registers by itself
            return
        from importlib.metadata import entry_points

        for plugin in entry_points(group="gymnasium.envs", name="whale"):
            try:
                plugin.load()()
            except Exception as error:  # a broken install of ours must not break everybody's Gymnasium
                warnings.warn(f"the environments of whale-rl are not available: {error!r}", stacklevel=2)


sys.meta_path.insert(0, AfterGymnasium())
