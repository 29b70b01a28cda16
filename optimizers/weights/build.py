"""The weight update that a configuration names, built around the model it trains."""

from __future__ import annotations

import pkgutil
from typing import Any

from optimizers.config import ConfigError, WeightsConfig
from optimizers.weights.protocol import WeightUpdate

METHODS = ("update", "weights", "save", "load", "reset")


def update_class(config: WeightsConfig) -> Any:
    """Returns the class that ``--weights.update`` names.

    Raises:
        ConfigError: There is none, or it is no `WeightUpdate`.
    """
    if config.update == "rsft":
        from optimizers.weights.rsft import RSFTUpdate

        return RSFTUpdate
    if ":" not in config.update:
        raise ConfigError(f"unknown --weights.update {config.update!r}; use rsft, or module:Class")
    try:
        found = pkgutil.resolve_name(config.update)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import --weights.update {config.update!r}: {error}") from error
    if missing := [name for name in METHODS if not callable(getattr(found, name, None))]:
        raise ConfigError(f"--weights.update {config.update!r} has no method {missing[0]}; see WeightUpdate")
    return found


def build(config: WeightsConfig, model: Any) -> WeightUpdate:
    """Builds the weight update.

    Args:
        config: Names it; it is handed on.
        model: A causal language model of transformers in float32, on the device that trains.
    """
    made: WeightUpdate = update_class(config)(model, config)
    return made
