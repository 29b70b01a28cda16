"""Build hook: puts the Gymnasium plug-in beside the packages, in ordinary and in editable installs alike."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = {f"packaging/{name}": name for name in ("whale_gymnasium.py", "whale_gymnasium.pth")}


class PluginFiles(BuildHookInterface):
    """Adds the files to the wheel's root, which becomes ``site-packages``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hatchling looks at one of the two maps, by the kind of wheel."""
        build_data["force_include"].update(FILES)
        build_data["force_include_editable"].update(FILES)
