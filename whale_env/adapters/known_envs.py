"""What Gymnasium's own small environments leave to a picture or a manual: names of actions, rules, when it is solved.

A model that is shown numbers needs the words. Environments that are not listed work too; say these things by argument.
The facts are from Gymnasium's documentation of each environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from whale_env.adapters.action_forms import Names


@dataclass(frozen=True, slots=True)
class Notes:
    """What a reader has to know about an environment.

    Attributes:
        rules: What it is about, for the model.
        names: Names of the actions.
        threshold: Return of an episode from which on it counts as solved; None takes the environment's own.
    """

    rules: str
    names: Names = None
    threshold: float | None = None


_LAKE = (
    "You walk on a frozen lake, drawn as a grid: S start, F ice, H hole, G goal. Your place is marked red. Reach the "
    "goal; a hole ends the walk. Where the ice is slippery you may slide to a side of where you wanted to go."
)
_COMPASS = ("up", "right", "down", "left")

KNOWN: Mapping[str, Notes] = {
    "Blackjack": Notes(
        "You play Blackjack against a dealer. You see your sum, one card of the dealer (1 is an ace), and whether you "
        "hold an ace that counts 11 (1) or not (0). Beat the dealer without going over 21.",
        ("stick", "hit"),
        1.0,
    ),
    "CartPole": Notes(
        "A pole stands on a cart. Keep it upright by pushing the cart. You see, in order: the cart's position and "
        "velocity, the pole's angle in radians (positive leans right) and its angular velocity.",
        ("left", "right"),
    ),
    "CliffWalking": Notes(
        "You walk on a grid, drawn with x for your place, T for the target and C for the cliff along the bottom row. "
        "Reach the target; the cliff throws you back to the start.",
        _COMPASS,
        -20.0,
    ),
    "FrozenLake": Notes(_LAKE, ("left", "down", "right", "up")),
    "FrozenLake8x8": Notes(_LAKE, ("left", "down", "right", "up")),
    "MountainCar": Notes(
        "A weak car stands in a valley. Rock it back and forth until its position is 0.5 or more. You see, in order: "
        "position (-1.2 to 0.6) and velocity.",
        ("left", "none", "right"),
        -200.0 + 1,
    ),
    "Taxi": Notes(
        "You drive a taxi on a grid with the stops R, G, Y and B. The taxi is marked yellow, and green with the "
        "passenger in it; the passenger's stop is marked blue, the destination magenta. Walls are |. Drive to the "
        "passenger, pick up, drive to the destination, drop off.",
        ("south", "north", "east", "west", "pickup", "dropoff"),
        1.0,
    ),
}
"""Environment name without namespace and version → what there is to know."""
