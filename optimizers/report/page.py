"""The report of a run, ``report.html``: one self-contained page of figures and tables.

``python -m optimizers.report runs/mine`` writes it into the run directory.

It reads the run directory only, finished or not, and changes nothing but the page. It holds test results, so it lies
beside the archive, where no proposer looks. Figures are drawn by matplotlib (the ``report`` extra).
"""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizers.archive.quoting import clean
from optimizers.record.ledger import ProposerCost, booked
from optimizers.record.rundir import JOURNAL, LEDGER, METRICS, RunDir, RunDirError
from whale_env.errors import InputError
from whale_env.json_lines import read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE = "report.html"

BLUE, ORANGE, GREEN, GREY, BAND = "#2f6db3", "#d9822b", "#3a8f5c", "#8a929b", "#eef2f7"

CHARACTERS = 120
"""Small characters that fit across a figure."""

MAX_HARNESSES = 200
"""Rows of the table of harnesses."""


class ReportError(InputError):
    """No report can be written; one line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class RunData:
    """What a report is made from.

    Attributes:
        config: The configuration.
        result: The result, or None while the run is not finished.
        units: Results of finished units by key, in order.
        seconds: How long they took together.
        metrics: Lines of ``metrics.jsonl``.
        ledger: Lines of ``ledger.jsonl``.
        metas: What is known of each harness, by id.
        summary: Lines of the archive's ``evolution_summary.jsonl``.
        accepted: Id of the harness that is accepted now, if any is known.
        source: Its source.
    """

    config: Mapping[str, Any]
    result: Mapping[str, Any] | None
    units: Mapping[str, Any]
    seconds: float
    metrics: Sequence[Mapping[str, Any]]
    ledger: Sequence[Mapping[str, Any]]
    metas: Mapping[str, Mapping[str, Any]]
    summary: Sequence[Mapping[str, Any]]
    accepted: str | None
    source: str

    @classmethod
    def read(cls, path: Path) -> RunData:
        """Reads a run directory.

        Raises:
            ReportError: It is none.
        """
        if not (path / "config.json").is_file() or not (path / JOURNAL).is_file():
            raise ReportError(f"{path} holds no run (no config.json and {JOURNAL}); give a run directory")
        journal = _lines(path / JOURNAL)
        units = {line["key"]: line["result"] for line in journal}
        metas = {
            file.parent.name: json.loads(file.read_text("utf-8"))
            for file in sorted((path / "harnesses").glob("*/meta.json"))
        }
        result = json.loads((path / "result.json").read_text("utf-8")) if (path / "result.json").is_file() else None
        metrics = _lines(path / METRICS)
        scores = [unit["accepted"] for key, unit in units.items() if key.endswith("/score")]
        used = [line["harness"] for line in metrics if "step" in line]
        accepted = result["harness"] if result else next(iter([*scores[-1:], *used[-1:], *list(metas)[:1]]), None)
        file = path / "harnesses" / str(accepted) / "harness.py"
        return cls(
            config=json.loads((path / "config.json").read_text("utf-8")),
            result=result,
            units=units,
            seconds=sum(line["seconds"] for line in journal),
            metrics=metrics,
            ledger=booked(_lines(path / LEDGER)),
            metas=metas,
            summary=_lines(path / "harnesses" / "evolution_summary.jsonl"),
            accepted=accepted,
            source=file.read_text("utf-8") if file.is_file() else "",
        )

    def name(self, harness_id: str | None) -> str:
        """Returns what a harness is called."""
        meta = self.metas.get(harness_id or "", {})
        return str(meta.get("name") or harness_id or "none")

    @property
    def evaluations(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The finished evaluations on the test split, in order, by name."""
        prefix = "evaluation/"
        return [(key.removeprefix(prefix), row) for key, row in self.units.items() if key.startswith(prefix)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path)) if path.is_file() else []


def write_report(path: Path) -> Path:
    """Writes ``report.html`` into a run directory.

    Args:
        path: The run directory; the run may be unfinished.

    Returns:
        The page.

    Raises:
        ReportError: It is no run directory, its files are damaged, or matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401  # only to say early and clearly that it is missing
    except ImportError:
        raise ReportError("the report needs matplotlib: pip install -e '.[report]'") from None
    try:
        RunDir(path).write_text(PAGE, _page(RunData.read(path)))
    except ReportError:
        raise
    except RunDirError as error:
        raise ReportError(str(error)) from error
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ReportError(f"cannot report on {path}: its files are of another form ({error!r})") from error
    return path / PAGE


# Figures


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


def _training(data: RunData) -> str | None:
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


def _search(data: RunData) -> str | None:
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


def _test(data: RunData) -> str | None:
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


def _spending(data: RunData) -> str | None:
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


# The page

STYLE = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2126; background: #fff; margin: 2rem auto; max-width: 60rem;
  padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem } p { margin: .4rem 0 }
.sub, .note { color: #5a636d } .note { font-size: .87rem }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0 }
.card { flex: 1 1 auto; border: 1px solid #dde3ea; border-radius: .5rem; padding: .6rem .9rem }
.card b { display: block; font-size: 1.2rem; font-weight: 600; overflow-wrap: anywhere } .card span { color: #5a636d;
  font-size: .85rem }
svg { width: 100%; height: auto }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .87rem }
th, td { text-align: left; padding: .3rem .55rem; border-bottom: 1px solid #e3e7ec; vertical-align: top }
td { overflow-wrap: break-word; max-width: 30rem } td.w { min-width: 15rem }
td.n, th.n { text-align: right; white-space: nowrap }
tr.on td { background: #eef7f1 }
pre { background: #f6f8fa; border: 1px solid #e3e7ec; border-radius: .5rem; padding: .8rem; overflow-x: auto;
  font-size: .8rem; line-height: 1.4 }
summary { cursor: pointer }
"""


def _page(data: RunData) -> str:
    config = data.config
    title = f"{config['env']} · {config['method']} · seed {config['seed']}"
    last = next(reversed(list(data.units)), None)
    state = "finished" if data.result else f"unfinished; last finished unit: {last}" if last else "nothing finished yet"
    figures = [
        ("Test", _test(data), _evaluations(data)),
        ("Training reward per step", _training(data), ""),
        ("Search reward per candidate", _search(data), _retests(data) + _harnesses(data)),
        ("What was spent", _spending(data), _proposer(data)),
    ]
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="sub">model {html.escape(str(config["model"]))} · {html.escape(state)}</p>',
        _cards(data),
    ]
    for heading, figure, more in figures:
        if figure or more:
            body.append(f"<h2>{heading}</h2>\n{figure or ''}\n{more}")
    if data.source:
        body.append(
            f"<h2>The accepted harness: {html.escape(data.name(data.accepted))}</h2>\n"
            f'<p class="note">harnesses/{html.escape(str(data.accepted))}/harness.py</p>\n{_highlighted(data.source)}'
        )
    shown = html.escape(json.dumps(config, indent=2))
    body.append(f"<h2>Configuration</h2>\n<details><summary>config.json</summary><pre>{shown}</pre></details>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _cards(data: RunData) -> str:
    cards: list[tuple[str, str]] = []
    rows = dict(data.evaluations)
    if "base" in rows:
        cards.append((f"{rows['base']['mean']:.1%}", f"base, test mean@{rows['base']['k']}"))
    if data.result is not None:
        cards.append((f"{data.result['final']['mean']:.1%}", "final pair"))
        cards.append((f"{data.result['selected']['mean']:.1%}", "pair selected on search"))
    elif len(rows) > 1:
        name, row = list(rows.items())[-1]
        cards.append((f"{row['mean']:.1%}", f"after {name}"))
    cards.append((data.name(data.accepted), "accepted harness"))
    rollouts = sum(line["rollouts"] for line in data.ledger if line["ledger"] == "agent")
    cards.append((f"{rollouts:,}", "rollouts"))
    cards.append((_duration(data.seconds), "of finished work"))
    told = "".join(f'<div class="card"><b>{html.escape(b)}</b><span>{html.escape(s)}</span></div>' for b, s in cards)
    return f'<div class="cards">{told}</div>'


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _evaluations(data: RunData) -> str:
    rows = []
    for name, row in data.evaluations:
        legality = "-" if row.get("legality") is None else f"{row['legality']:.1%}"
        rows.append(
            [
                name,
                f"{row['mean']:.1%}",
                f"{row['low']:.1%} to {row['high']:.1%}",
                f"{row['format']:.1%}",
                legality,
                f"{row['truncated']:.1%}",
                f"{row['turns']:.2f}",
                f"{row['tokens']:.1f}",
                str(row["unknown"]),
                data.name(row["harness"]),
                str(row["weights_version"]),
            ]
        )
    heads = [
        *("after", "mean@k", "95 % interval", "read", "legal", "cut off"),
        *("turns", "tokens", "unknown", "harness", "weights"),
    ]
    return _table(heads, rows, numbers=(*range(1, 9), 10)) if rows else ""


def _harnesses(data: RunData) -> str:
    """Returns the table of candidates: from the summary where there is one, else from the metrics."""
    lines = list(data.summary) or [
        {**data.metas.get(line["harness"], {}), **line, "id": line["harness"], "verdict": ""}
        for line in data.metrics
        if "iteration" in line
    ]
    if not lines:
        return ""
    rows: list[list[str]] = []
    on: set[int] = set()
    for line in lines[:MAX_HARNESSES]:
        if line.get("id") == data.accepted:
            on.add(len(rows))
        reward, delta = line.get("reward"), line.get("delta")
        failures = ", ".join(f"{kind} {count}" for kind, count in (line.get("failures") or {}).items())
        rows.append(
            [
                f"{line['cycle']}.{line['iteration']}",
                str(line.get("name")),
                str(line.get("axis", "")),
                "-" if reward is None else f"{reward:.3f}",
                "-" if delta is None else f"{delta:+.3f}",
                failures,
                str(line.get("verdict", "")),
                str(line.get("hypothesis") or line.get("why") or ""),
            ]
        )
    heads = ["iteration", "harness", "axis", "reward", "change", "failures", "verdict", "hypothesis"]
    more = f"<p class=note>{len(lines) - MAX_HARNESSES} more lines</p>" if len(lines) > MAX_HARNESSES else ""
    table = _table(heads, rows, numbers=(3, 4), wide=(7,), on=on)
    return f"<details><summary>{len(lines)} candidates</summary>{table}{more}</details>"


def _retests(data: RunData) -> str:
    """Returns the table of re-tests on fresh rollouts; a gain that shrinks on tasks held out was overfitting."""
    rows = []
    for key, unit in data.units.items():
        test = unit.get("retest") if key.endswith("/score") else None
        if test:
            held, overfit = test["holdout"], test["overfit"]
            rows.append(
                [
                    ".".join(key.split("/")[1:3]),
                    data.name(test["nominee"]),
                    f"{test['rollouts']:,}",
                    f"{test['searched']:+.3f}",
                    "-" if held is None else f"{held:+.3f}",
                    "-" if overfit is None else f"{overfit:+.3f}",
                    f"{test['looks'][-1]:.4f}",
                    "yes" if test["accepted"] else "no",
                ]
            )
    heads = ["iteration", "nominee", "fresh rollouts", "gain", "gain held out", "difference", "p", "accepted"]
    return _table(heads, rows, numbers=range(2, 7)) if rows else ""


def _proposer(data: RunData) -> str:
    costs = [line for line in data.ledger if line["ledger"] == "proposer"]
    if not costs:
        return ""
    total = {name: sum(line.get(name, 0) for line in costs) for name in ProposerCost.__dataclass_fields__}
    return (
        f'<p class="note">Proposer, counted apart: {total["conversations"]:,} conversations, '
        f"{total['input_tokens']:,} tokens in, {total['cached_tokens']:,} cached, {total['output_tokens']:,} out, "
        f"{total['usd']:.2f} USD, {total['seconds']:.0f} s.</p>"
    )


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    wide: Sequence[int] = (),
    on: set[int] | frozenset[int] = frozenset(),
) -> str:
    def marked(column: int) -> str:
        return ' class="n"' if column in numbers else ' class="w"' if column in wide else ""

    head = "".join(f"<th{marked(i)}>{html.escape(text)}</th>" for i, text in enumerate(heads))
    body = ""
    for number, row in enumerate(rows):
        cells = "".join(f"<td{marked(i)}>{html.escape(clean(text))}</td>" for i, text in enumerate(row))
        body += ('<tr class="on">' if number in on else "<tr>") + f"{cells}</tr>\n"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _highlighted(source: str) -> str:
    from rich.console import Console
    from rich.syntax import Syntax

    console = Console(record=True, file=io.StringIO(), width=200, color_system="truecolor")
    console.print(Syntax(clean(source), "python", theme="friendly", background_color="default"))
    page = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    return re.sub(r"background-color: #[0-9a-f]+;? ?", "", page)
