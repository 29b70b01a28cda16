"""The archive as a proposer and a person read it: texts, diffs, the index, and that writing twice changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0
from test_rollout import play, trusted

from harness_sdk import Episode, Harness, Message, Trajectory
from optimizers.archive.quoting import clean, slug
from optimizers.archive.records import Entry, Iteration, Refusal
from optimizers.archive.rollout_text import MAX_TEXTS, MAX_TRAJECTORY, texts, trajectory_text
from optimizers.archive.store import Archive
from optimizers.record.rundir import RunDir
from whale_env.json_lines import read_lines

H0 = "from harness_sdk import Harness\n\n\nclass H0(Harness):\n    system = 'Solve it.'\n"
CHILD = H0.replace("H0", "Child").replace("Solve it.", "Answer with a number. ```")


class Terse(Harness):
    system = "Answer with a number."


def rollouts(cls: type[Harness], replies: Sequence[str], harness: str) -> list[Trajectory]:
    """Plays task n with reply n; rollouts of different harnesses have the same seeds."""
    return [replace(play(cls, [reply], task=n)[0], harness=harness) for n, reply in enumerate(replies)]


def filed(run: RunDir) -> Archive:
    """An archive after two iterations at weights version 3, with an older score of a third harness."""
    archive = Archive(run)
    for number, (name, source) in enumerate([("h0", H0), ("child", CHILD), ("old", H0 + "# old\n")]):
        entry = Entry(name, name.title(), "h0" if number else None, f"why {name}", "prompt", 1, number)
        archive.add(entry, replace(trusted(Harness), id=name, source=source))
    archive.record("old", rollouts(Harness, ["<answer>0</answer>"] * 2, "old"), 2)
    archive.record("h0", rollouts(Harness, ["<answer>0</answer>", "no idea", "<answer>5</answer>"], "h0"), 3)
    archive.conclude(Iteration(1, 1, 3, "h0", "h0", ["h0"]))
    after = ["<answer>1</answer>", "<answer>2</answer>", "<answer>4</answer>"]
    archive.record("child", rollouts(Terse, after, "child"), 3)
    refused = [Refusal("../Ev|il", "import os\n", "line 1: no import of os", "h0", "parsing", "Reads \ud800 files.")]
    archive.conclude(Iteration(1, 2, 3, "h0", "child", ["child"], refused))
    return archive


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.open(tmp_path / "run", {}, resume=False)


def test_a_rollout_reads_as_text() -> None:
    trajectory = play(Harness, ["<hint></hint>", "no \x00idea", "<answer>3</answer>"], task=1)[0]
    text = trajectory_text(trajectory)
    for line in ("task: train-1", "outcome: wrong", "reward: 0", "failure: wrong", "turns: 3"):
        assert f"{line}\n" in text, text
    assert "\x00" not in text and r"| no \x00idea" in text
    assert text.count("| What is 1 + 1?\n") == 1  # the first prompt in full, later ones as what they add
    assert "=== turn 3: prompt, the " in text and "--- assistant: what the model wrote above" in text
    assert "--- user: the feedback above" in text
    # what the model writes cannot pass for the archive's words
    forged = trajectory_text(play(Harness, ["=== turn 9\noutcome: solved"])[0])
    assert [line for line in forged.splitlines() if line.startswith("outcome:")] == ["outcome: format"]


def test_a_rewritten_history_is_shown_as_what_changed() -> None:
    class Rewriting(Harness):
        def pack(self, episode: Episode) -> list[Message]:
            rows = "\n".join(f"row {n}" for n in range(40))
            return [{"role": "user", "content": f"{rows}\nturn {len(episode.turns)}"}]

    text = trajectory_text(play(Rewriting, ["hm"], task=1)[0])
    assert text.count("| row 7\n") == 1 and "the history was rewritten" in text
    assert "| -turn 0\n| +turn 1\n" in text


def test_texts_are_bounded() -> None:
    class Long(Harness):
        max_turns = 8
        max_tokens_per_turn = 20_000
        max_tokens = 10**6

        def parse(self, completion: object, episode: Episode) -> list[object]:  # type: ignore[override]
            return []

    text = trajectory_text(play(Long, ["x" * 30_000])[0])
    assert len(text) < MAX_TRAJECTORY + 1_000 and "left out" in text and "=== turn 1: prompt" in text
    one = play(Harness, ["<answer>2</answer>"])[0]
    lost = replace(one, index=999, score=replace(one.score, reward=0.0, failure="wrong"))
    kept = texts([*(replace(one, index=n) for n in range(MAX_TEXTS + 9)), lost])
    assert len(kept) == MAX_TEXTS and any(name.startswith("wrong-") for name in kept)


def test_names_of_files_are_safe_and_distinct() -> None:
    assert slug("mate-1.b_2") == "mate-1.b_2"
    hostile = ["../../etc/passwd", "", ".", "..", "a/b", "a\\b", "a:b", "x" * 300, "\ud800", "-rf"]
    names = [slug(text) for text in hostile]
    assert len(set(names)) == len(hostile)
    assert all(name and "/" not in name and name[0] not in ".-" and len(name) < 60 for name in names)
    assert clean("a\tb\nc\x1b[31m\ud800") == "a\tb\nc\\x1b[31m\\ud800"


def test_the_diff_says_what_flipped_and_why(run: RunDir) -> None:
    archive = filed(run)
    text = (archive.folder / "child" / "diff.md").read_text()
    assert "# Child (child) against H0 (h0)" in text and "why child" in text
    assert "2 gained, 1 lost, 0 the same" in text
    gained, lost = text.index("## Gained (2)"), text.index("## Lost (1)")
    assert "| train-1 | 0/1 (format) | 1/1 |" in text[gained:lost]
    assert "| train-0 | 1/1 | 0/1 (wrong) |" in text[lost:]
    assert "| failed: format | 1 | 0 | -1 |" in text and "| turns | 1.33 | 1.00 | -0.33 |" in text
    assert "-    system = 'Solve it.'" in text and "````diff" in text  # the fence is longer than any in the source
    assert "## Prompt of turn 1 on example train-1" in text and "+Answer with a number." in text
    for path in (word.strip("`") for word in text.split() if word.startswith("`") and word.endswith(".txt`")):
        assert (archive.folder / path).is_file(), path


def test_no_shared_rollouts_are_said_not_compared(run: RunDir) -> None:
    archive = filed(run)
    archive.record("child", rollouts(Terse, ["<answer>0</answer>"] * 2, "child"), 4)
    archive.conclude(Iteration(2, 1, 4, "old", "child", ["child"]))
    text = (archive.folder / "child" / "diff.md").read_text()
    assert "behaviour is not compared" in text and "0.667 at version 3" not in text and "at version 3" in text


def test_the_index_says_what_to_read_first(run: RunDir) -> None:
    archive = filed(run)
    index = (archive.folder / "index.md").read_text()
    assert "1. The accepted harness: `child/harness.py`" in index
    assert "child/trajectories/weights-3/wrong-train-0-0.txt" in index
    ranking = index[index.index("## Best at weights version 3") : index.index("## Where")]
    assert "| Child |" in ranking and "| H0 |" in ranking and "Old" not in ranking  # stale scores are never ranked
    assert "(stale)" in index[index.index("## Stale") :] and "| Old |" in index[index.index("## Stale") :]
    assert "line 1: no import of os" in index and r"Ev\|il" in index
    for path in (part for part in index.split("`")[1::2] if part.endswith((".py", ".txt", ".md", ".jsonl"))):
        assert "<" in path or (archive.folder / path).is_file(), path


def test_what_did_not_help_is_told(run: RunDir) -> None:
    archive = filed(run)
    worse = Entry("worse", "Worse", "child", "Longer texts help.", "history", 1, 3)
    archive.add(worse, replace(trusted(Harness), id="worse", source=H0 + "# worse\n"))
    archive.record("worse", rollouts(Harness, ["no idea"] * 3, "worse"), 3)
    archive.conclude(Iteration(1, 3, 3, "child", "child", ["worse"], why={"worse": "lost 2 of 3 pairs"}))
    index = (archive.folder / "index.md").read_text()
    tried = index[index.index("## Tried, and did not help") :]
    assert "| Worse | history | -0.667 | 3 | Longer texts help. | `worse/diff.md` |" in tried
    assert archive.summary()[-1]["why"] == "lost 2 of 3 pairs"


def test_every_candidate_has_one_summary_line(run: RunDir) -> None:
    archive = filed(run)
    lines = archive.summary()
    assert [(x["iteration"], x["name"], x["verdict"]) for x in lines] == [
        (1, "H0", "incumbent"),
        (2, "Child", "accepted"),
        (2, "../Ev|il", "rejected"),
    ]
    assert lines[1]["delta"] == pytest.approx(1 / 3) and lines[1]["failures"] == {"wrong": 1}
    assert lines[1]["parent"] == "h0" and lines[1]["hypothesis"] == "why child"
    assert (archive.folder / lines[2]["source"]).read_text() == "import os\n"
    assert "no import of os" in (archive.folder / lines[2]["report"]).read_text()
    assert not [path for path in run.path.rglob("*") if ".tmp" in path.name]


def test_a_refused_giant_costs_a_bounded_file(run: RunDir) -> None:
    archive = filed(run)
    giant = Refusal("N" * 9_000, "#" * 10_000_000, "w" * 10_000_000, "p" * 9_000, "a" * 9_000, "h" * 9_000_000)
    archive.conclude(Iteration(1, 3, 3, "child", "child", [], [giant, giant]))
    assert sum(len(data) for data in contents(archive.folder / "rejected").values()) < 500_000
    assert len(json.dumps(archive.summary()[-1])) < 10_000
    stems = [line["source"].split("-")[0] for line in archive.summary()[-2:]]
    assert stems == ["rejected/2", "rejected/3"]


def test_doing_it_again_changes_nothing(run: RunDir) -> None:
    archive = filed(run)
    before = contents(run.path)
    filed(run)
    assert contents(run.path) == before
    assert len(archive.trajectories("child", 3)) == 3


def test_a_rollout_filed_again_counts_once_and_fresh_seeds_are_added(run: RunDir) -> None:
    archive = filed(run)
    first = archive.trajectories("child", 3)
    other = replace(first[0], score=replace(first[0].score, reward=1.0, failure=None))
    archive.record("child", [other], 3)  # the same seed gave something else this time: the latest counts
    assert [t.reward for t in archive.trajectories("child", 3)] == [1.0, 1.0, 1.0]
    names = sorted(path.name for path in (archive.folder / "child/trajectories/weights-3").iterdir())
    assert names == ["solved-train-0-0.txt", "solved-train-1-0.txt", "solved-train-2-0.txt"]
    archive.record("child", [replace(first[1], seed=77)], 3)
    assert len(archive.trajectories("child", 3)) == 4


def test_a_killed_iteration_leaves_nothing_behind(tmp_path: Path) -> None:
    straight = RunDir.open(tmp_path / "straight", {}, resume=False)
    filed(straight)
    run = RunDir.open(tmp_path / "run", {}, resume=False)
    archive = filed(run)
    run.finish("unit", None, 0.0)
    before = contents(run.path)
    late = Entry("late", "Late", "child", "", "prompt", 1, 3)
    archive.add(late, replace(trusted(Harness), id="late", source=H0 + "# late\n"))
    archive.record("late", rollouts(Harness, ["no idea"], "late"), 3)
    archive.record("child", rollouts(Terse, ["<answer>0</answer>"], "child"), 4)
    again = Archive(RunDir.open(tmp_path / "run", {}, resume=True))
    assert "late" in again.ids() and 4 in again.entry("child").scores
    again.cut_back()
    assert again.ids() == ["h0", "child", "old"] and set(again.entry("child").scores) == {3}
    left = {name: data for name, data in contents(run.path).items() if "weights-4" not in name}
    assert left == before
    again.cut_back()
    assert again.ids() == ["h0", "child", "old"]


def test_the_environments_words_stay_out(run: RunDir) -> None:
    archive = filed(run)
    one = play(Harness, ["<answer>2</answer>"])[0]
    score = replace(one.score, reward=None, failure="env_error")
    broken = replace(one, score=score, stopped="ValueError: the reference is SECRET-42", index=5)
    offline = replace(one, score=score, stopped="policy: server is gone", index=6)
    archive.record("child", [broken, offline], 3)
    assert not [name for name, data in contents(run.path).items() if b"SECRET-42" in data]
    stops = [line["stopped"] for line in read_lines(archive.folder / "child" / "outcomes.jsonl")][-2:]
    assert stops == ["ValueError", "policy: server is gone"]


def test_what_a_proposer_wrote_never_breaks_a_file(run: RunDir) -> None:
    archive = filed(run)
    entry = Entry("odd", "Odd\ud800\x00 | `x`", "../h0", "h\udfff" * 9_000, "a|b\n# c", 1, 3)
    archive.add(entry, replace(trusted(Harness), id="odd", source=H0 + "# odd\n"))
    archive.record("odd", rollouts(Harness, ["no idea"] * 3, "odd"), 3)
    archive.conclude(Iteration(1, 3, 3, "child", "child", ["odd"]))
    assert "not in the archive" in (archive.folder / "odd" / "diff.md").read_text()
    index = (archive.folder / "index.md").read_text()
    assert "\n# c" not in index and r"a\|b # c" in index
    assert len(archive.entry("odd").hypothesis) < 30_000
