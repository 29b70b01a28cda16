"""The figures of a report, SVG elements drawn by matplotlib (the ``report`` extra)."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from optimizers.archive.quoting import clean
from optimizers.report.data import RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY, BAND = "#2f6db3", "#d9822b", "#3a8f5c", "#8a929b", "#eef2f7"

CHARACTERS = 120
"""Small characters that fit across a figure."""


def _svg(draw: Callable[[Figure], None], width: float, height: float, label: str) -> str:
    """Returns a figure as an SVG element; the same data give the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.hashsalt": label,
        "text.parse_math": False,
        "font.size": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GREY,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "legend.frameon": False,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)


def _plain(text: str, limit: int = 22) -> str:
    """Returns a name that any font can draw, shortened."""
    shown = "".join(c if " " <= c <= "~" else "?" for c in clean(text))
    return shown if len(shown) <= limit else shown[: limit - 1] + "~"


def _bands(axes: Axes, spans: Sequence[tuple[str, float, float]], labels: Sequence[str] = ()) -> None:
    """Shades every second phase, and writes labels above those that are wide enough."""
    for _, left, right in spans[::2]:
        axes.axvspan(left, right, color=BAND, zorder=0, linewidth=0)
    whole = spans[-1][2] - spans[0][1]
    for label, (name, left, right) in zip(labels, spans, strict=False):
        room = CHARACTERS * (right - left) / whole
        short = name[:1] + name.rpartition("-")[2]
        text = next((text for text in (label, name, short) if len(text) + 1 <= room), "")
        axes.annotate(
            text,
            ((left + right) / 2, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
            color="#444",
        )


def _spans(phases: Sequence[str], xs: Sequence[float]) -> list[tuple[str, float, float]]:
    """Returns where each phase begins and ends, for points in order."""
    spans: list[tuple[str, float, float]] = []
    for phase, x in zip(phases, xs, strict=True):
        if spans and spans[-1][0] == phase:
            spans[-1] = (phase, spans[-1][1], x + 0.5)
        else:
            spans.append((phase, x - 0.5, x + 0.5))
    return spans


def training(data: RunData) -> str | None:
    """Draws reward and loss of every training step, or None where nothing was trained."""
    steps = [line for line in data.metrics if "step" in line]
    if not steps:
        return None
    xs = [float(line["step"]) for line in steps]
    rewards = [line["reward"] for line in steps]
    losses = [(x, line["loss"]) for x, line in zip(xs, steps, strict=True) if line.get("loss") is not None]
    spans = _spans([line["phase"] for line in steps], xs)

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots(
            2 if losses else 1, 1, sharex=True, squeeze=False, height_ratios=[2, 1][: 1 + any(losses)]
        )
        top: Axes = axes[0, 0]
        under = {line["phase"]: _plain(data.name(line["harness"])) for line in steps}
        _bands(top, spans, [f"{name}, {under[name]}" for name, _, _ in spans])
        for _, left, right in spans:
            inside = [(x, y) for x, y in zip(xs, rewards, strict=True) if left < x < right]
            top.plot(*zip(*inside, strict=True), color=BLUE, linewidth=1.4, zorder=2)
        for learnt, fill, label in ((True, BLUE, "step that learnt"), (False, "white", "nothing accepted, no update")):
            chosen = [(x, y) for x, y, line in zip(xs, rewards, steps, strict=True) if bool(line["updates"]) == learnt]
            if chosen:
                across, up = zip(*chosen, strict=True)
                top.scatter(across, up, s=22, color=fill, edgecolor=BLUE, zorder=3, label=label)
        top.set_ylim(-0.04, 1.04)
        top.set_ylabel("mean reward")
        top.legend(loc="upper left", fontsize=8.5)
        last = top
        if losses:
            last = axes[1, 0]
            _bands(last, spans)
            for _, left, right in spans:
                inside = [(x, y) for x, y in losses if left < x < right]
                if inside:
                    last.plot(*zip(*inside, strict=True), color=ORANGE, marker="o", markersize=3.5, linewidth=1.4)
            last.set_ylabel("loss per token")
            last.set_ylim(bottom=0)
        last.set_xlabel("RSFT step")
        last.set_xlim(xs[0] - 0.5, xs[-1] + 0.5)
        last.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _svg(draw, 9, 4.2 if losses else 3, "Mean training reward per RSFT step, by phase")


def search(data: RunData) -> str | None:
    """Draws every candidate of the searches and the accepted path, or None where nothing was searched."""
    scored = [line for line in data.metrics if "iteration" in line]
    if not scored:
        return None
    keys = list(dict.fromkeys((line["phase"], line["cycle"], line["iteration"]) for line in scored))
    place = {key: float(n) for n, key in enumerate(keys, 1)}
    accepted: list[tuple[float, float, str]] = []
    for phase, cycle, iteration in keys:
        unit = data.units.get(f"harness/{cycle}/{iteration}/score")
        if unit is not None:
            accepted.append((place[phase, cycle, iteration], unit["best"], unit["accepted"]))
    spans = _spans([key[0] for key in keys], list(place.values()))

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        _bands(axes, spans, [name for name, _, _ in spans])
        groups: dict[float, list[float]] = {}
        for line in scored:
            groups.setdefault(place[line["phase"], line["cycle"], line["iteration"]], []).append(line["reward"])
        points = [(x + shift, y) for x, ys in groups.items() for shift, y in _spread(ys)]
        across, up = zip(*points, strict=True)
        axes.scatter(across, up, s=26, color=GREY, zorder=2, label="candidate")
        for _, left, right in spans:
            path = [point for point in accepted if left < point[0] < right]
            if path:
                xs, ys, _ = zip(*path, strict=True)
                label = "accepted" if path[0] == accepted[0] else None
                axes.plot(xs, ys, color=GREEN, marker="o", markersize=6, linewidth=1.6, zorder=3, label=label)
        before = None
        for x, y, harness in accepted:
            if harness != before:
                offset = (0, -16) if before is None else (0, 9)  # the path rises from the first
                name = _plain(data.name(harness))
                axes.annotate(name, (x, y), offset, textcoords="offset points", ha="center", fontsize=8.5)
            before = harness
        highest = max([line["reward"] for line in scored] + [y for _, y, _ in accepted])
        top = min(1.12, max(0.2, highest * 1.3 + 0.04))
        axes.set_ylim(-0.13 * top, top)
        axes.set_xlim(0.3, len(keys) + 0.7)
        axes.set_xticks(list(place.values()), [str(key[2]) for key in keys])
        axes.set_xlabel("iteration of the phase (0 scores the incoming harness)")
        axes.set_ylabel("search reward")
        axes.legend(loc="upper left", fontsize=8.5)

    return _svg(draw, 9, 3.4, "Search reward of every candidate by iteration, with the accepted path")


def _spread(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yields points with a small shift to the side, so that equal ones can be told apart."""
    middle = (len(values) - 1) / 2
    step = min(0.12, 0.5 / max(len(values), 1))
    for number, value in enumerate(sorted(values)):
        yield (number - middle) * step, value


def test_scores(data: RunData) -> str | None:
    """Draws the scores on the test split with their intervals, or None where nothing was evaluated."""
    rows = list(data.evaluations)
    if data.result is not None:
        rows += [("final", data.result["final"]), ("selected on search", data.result["selected"])]
    if not rows:
        return None

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        for position, (name, row) in enumerate(rows):
            colour = {"base": GREY, "final": GREEN, "selected on search": GREEN}.get(name, BLUE)
            mean, low, high = (100 * row[key] for key in ("mean", "low", "high"))
            axes.errorbar(
                mean, position, xerr=[[max(mean - low, 0)], [max(high - mean, 0)]], fmt="o", color=colour, capsize=3
            )
            axes.annotate(
                f"{mean:.1f}", (mean, position), (0, 7), textcoords="offset points", ha="center", fontsize=8.5
            )
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.7)
        highest = 100 * max(row["high"] for _, row in rows)
        axes.set_xlim(-highest / 40, min(102, highest * 1.1 + 0.5))
        axes.grid(axis="x", color="#e3e7ec", zorder=0)
        axes.set_axisbelow(True)
        axes.set_xlabel(f"test mean@{rows[0][1]['k']} in %, with 95 % intervals over {rows[0][1]['tasks']} tasks")

    return _svg(draw, 9, 0.9 + 0.42 * len(rows), "Test mean@k with intervals, by phase")


def spending(data: RunData) -> str | None:
    """Draws rollouts and tokens by phase, or None where nothing was spent."""
    phases: dict[str, dict[str, float]] = {}
    for line in data.ledger:
        if line["ledger"] == "agent":
            into = phases.setdefault(line["phase"], {"rollouts": 0, "prompt_tokens": 0, "sampled_tokens": 0})
            for key in into:
                into[key] += line[key]
    if not phases:
        return None
    names = list(phases)

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        rows = range(len(names))
        left.barh(rows, [phases[name]["rollouts"] for name in names], color=[_kind(name) for name in names])
        left.set_xlabel("rollouts")
        prompt = [phases[name]["prompt_tokens"] for name in names]
        sampled = [phases[name]["sampled_tokens"] for name in names]
        right.barh(rows, prompt, color="#b9c6d6", label="in prompts")
        right.barh(rows, sampled, left=prompt, color=ORANGE, label="sampled")
        right.set_xlabel("tokens")
        left.set_yticks(rows, names)
        left.set_ylim(len(names) - 0.4, -0.6)
        for axes in (left, right):
            axes.xaxis.set_major_formatter(lambda value, _: _count(value))
            axes.xaxis.get_major_locator().set_params(nbins=5)
            axes.tick_params(axis="y", length=0)
        right.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8.5, borderaxespad=0.2)

    return _svg(draw, 9, 1.1 + 0.26 * len(names), "Rollouts and tokens by phase")


def _kind(phase: str) -> str:
    return {"weights": BLUE, "harness": GREEN}.get(phase.split("-")[0], GREY)


def _count(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"
