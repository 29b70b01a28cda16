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
from collections.abc import Sequence
from pathlib import Path

from optimizers.archive.quoting import clean
from optimizers.record.ledger import ProposerCost
from optimizers.record.rundir import RunDir, RunDirError
from optimizers.report import figures
from optimizers.report.data import ReportError, RunData

PAGE = "report.html"

MAX_HARNESSES = 200
"""Rows of the table of harnesses."""


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
    sections = [
        ("Test", figures.test_scores(data), _evaluations(data)),
        ("Training reward per step", figures.training(data), ""),
        ("Search reward per candidate", figures.search(data), _retests(data) + _harnesses(data)),
        ("What was spent", figures.spending(data), _proposer(data)),
    ]
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="sub">model {html.escape(str(config["model"]))} · {html.escape(state)}</p>',
        _cards(data),
    ]
    for heading, figure, more in sections:
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


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _evaluations(data: RunData) -> str:
    rows = []
    for name, row in data.evaluations:
        rows.append(
            [
                name,
                f"{row['mean']:.1%}",
                f"{row['low']:.1%} to {row['high']:.1%}",
                _share(data.floor(row["harness"])),
                _share(row.get("copied")),
                f"{row['format']:.1%}",
                _share(row.get("legality")),
                f"{row['truncated']:.1%}",
                f"{row['turns']:.2f}",
                f"{row['tokens']:.1f}",
                str(row["unknown"]),
                data.name(row["harness"]),
                str(row["weights_version"]),
            ]
        )
    heads = [
        *("after", "mean@k", "95 % interval", "floor", "copied", "read", "legal", "cut off"),
        *("turns", "tokens", "unknown", "harness", "weights"),
    ]
    return _table(heads, rows, numbers=(*range(1, 11), 12)) if rows else ""


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
