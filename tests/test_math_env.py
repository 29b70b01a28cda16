"""The mathematics environment, its generated problems, its loaders, and its reference harnesses."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import whale_env
from harness_sdk import load
from harness_sdk.policies import ScriptedPolicy
from harness_sdk.rollout import Job, rollout
from harness_sdk.trajectory import Trajectory
from whale_env import ToolCall, ToolEnv, datasets
from whale_env.math.generator import TIERS, TOPICS, generate
from whale_env.math.problems import generated_problems, load_problems
from whale_env.rows import DatasetError
from whale_env.splits import plan_of, split_of, text_key
from whale_env.types import SPLITS

SHARED = Path(os.environ.get("WHALE_SHARED", Path(__file__).parents[2] / "shared"))


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def env(tmp_path: Path) -> ToolEnv:
    made = whale_env.make(
        "math", source=write(tmp_path / "one.jsonl", {"problem": "What is 1/2 + 1/4?", "answer": "3/4"})
    )
    made.reset(options={"task": only(made)})
    return made


def only(env: ToolEnv) -> str:
    return next(task.id for split in SPLITS for task in env.tasks(split))


def answer(env: ToolEnv, text: str) -> tuple[float, str | None, bool]:
    env.reset(options={"task": only(env)})
    _, reward, terminated, _, _ = env.step(ToolCall("answer", {"text": text}))
    return reward, env.score().failure, terminated


@pytest.mark.parametrize(
    ("text", "reward", "failure"),
    [
        (r"\boxed{3/4}", 1.0, None),
        (r"It is $\boxed{\frac{3}{4}}$.", 1.0, None),
        (r"\boxed{0.75}", 1.0, None),
        (r"\boxed{1/4}, no: \boxed{3/4}", 1.0, None),
        (r"\boxed{3/4}, no: \boxed{1/4}", 0.0, "wrong"),
        (r"3/4 \boxed{1}", 0.0, "wrong"),
        ("3/4", 0.0, "format"),
        (r"\boxed{3/4", 0.0, "format"),
        ("", 0.0, "format"),
    ],
)
def test_the_last_box_counts_and_nothing_else(env: ToolEnv, text: str, reward: float, failure: str | None) -> None:
    assert answer(env, text) == (reward, failure, True)


def test_an_answer_ends_the_episode(env: ToolEnv) -> None:
    answer(env, r"\boxed{1}")
    _, reward, terminated, _, info = env.step(ToolCall("answer", {"text": r"\boxed{3/4}"}))
    assert (reward, terminated) == (0.0, True) and "over" in info["error"]
    assert env.score().reward == 0.0


def test_programs_run_and_their_output_is_shown(env: ToolEnv) -> None:
    observation, reward, terminated, _, info = env.step(
        ToolCall("python", {"code": "from fractions import Fraction\n1+1"})
    )
    assert (observation.text, reward, terminated, info["error"]) == ("2", 0.0, False, None)
    assert observation.data["problem"] == "What is 1/2 + 1/4?"
    assert observation.data["last_result"] == {"stdout": "2\n", "stderr": "", "status": "ok"}
    observation = env.step(ToolCall("python", {"code": "1/0"}))[0]
    assert "ZeroDivisionError" in observation.text and observation.text.endswith("[error]")
    assert env.step(ToolCall("python", {"code": "pass"}))[0].text == "[no output]"
    assert env.step(ToolCall("python", {"code": " \n"}))[4]["error"] == "python: the program is empty"
    env.step(ToolCall("answer", {"text": r"\boxed{.75}"}))
    assert env.score().metrics == {"programs": 3.0, "boxed": 1.0}


def test_an_unfinished_episode_has_no_reward(env: ToolEnv) -> None:
    assert (env.score().reward, env.score().failure) == (0.0, "budget")


# Generated problems


@pytest.mark.parametrize("tier", TIERS)
def test_generated_problems_are_the_same_every_time(tier: str) -> None:
    made = generate(tier, 200, seed=3)
    assert made == generate(tier, 200, seed=3) != generate(tier, 200, seed=4)
    assert len({problem.text for problem in made}) == 200
    assert {problem.topic for problem in made} <= set(TOPICS)
    assert all("answer" not in repr(problem) for problem in made)


def test_generated_answers_are_right_where_a_formula_tells() -> None:
    checked: Counter[str] = Counter()
    for tier in TIERS:
        for problem in generate(tier, 600):
            text, name = problem.text, problem.kind.split()[0]
            if (
                name in ("_sum", "_product", "_difference", "_two_digit", "_order")
                and "What is" in text
                and "of" not in text
            ):
                shown = text.removeprefix("What is ").rstrip("?").replace("times", "*")
                assert str(eval(shown)) == problem.answer, text
            elif name in ("_linear", "_both_sides", "_unknown"):
                left, right = (
                    side.replace("x", f"*({problem.answer})").removeprefix("*").replace(" *", " 1*")
                    for side in text.removeprefix("Solve for x: ").split(" = ")
                )
                assert eval(left) == eval(right), text
            elif name == "_quadratic":
                body = text.removeprefix("What is the larger root of ").removesuffix(" = 0?")
                x = int(problem.answer)
                body = body.replace("x^2", str(x * x)).replace(" x", " 1x").replace("x", f"*({x})")
                assert eval(body) == 0, text
            else:
                continue
            checked[name] += 1
    assert len(checked) == 9 and min(checked.values()) > 10


def test_the_first_tier_is_small() -> None:
    for problem in generate("1", 1000):
        assert 0 <= int(problem.answer) <= 100 and len(problem.text) < 90


def test_embedded_problems_fill_all_splits_and_wordings_share_one() -> None:
    problems = list(generated_problems())
    assert len({problem.id for problem in problems}) == len(problems) == 5000
    for split in SPLITS:
        tiers = Counter(problem.tier for problem in problems if problem.split == split)
        assert all(tiers[tier] >= 100 for tier in TIERS)
    split_by_text = {problem.text: problem.split for problem in problems}
    wordings: dict[str, set[str]] = {}
    for made in generate("1", 1000):
        wordings.setdefault(made.kind, set()).add(made.text)
    several = [texts for texts in wordings.values() if len(texts) > 1]
    assert len(several) > 50 and all(len({split_by_text[text] for text in texts}) == 1 for texts in several)


def test_filters() -> None:
    env = whale_env.make("math", tiers=["1", "3"], limit=50)
    assert sum(len(env.tasks(split)) for split in SPLITS) == 50
    assert {task.data["tier"] for split in SPLITS for task in env.tasks(split)} <= {"1", "3"}
    with pytest.raises(ValueError, match="unknown tier '9'; the tiers are 1, 2"):
        whale_env.make("math", tiers=["9"])
    with pytest.raises(ValueError, match=r"Did you mean \['1'\]"):
        whale_env.make("math", tiers="1")
    with pytest.raises(ValueError, match="limit must be a whole number of at least 1, not 0"):
        whale_env.make("math", limit=0)


# Loaders

DAPO = {
    "prompt": [
        {
            "role": "user",
            "content": "Solve the following math problem step by step. The last line of your response should be of the "
            "form Answer: $Answer.\n\nWhat is 6 times 7?\n\n"
            'Remember to put your answer on its own line after "Answer:".',
        }
    ],
    "reward_model": {"ground_truth": "42", "style": "rule"},
}
LAYOUTS = {
    "dapo": DAPO,
    "dapo processed": {"prompt": "What is 6 times 7?", "solution": "42"},
    "gsm8k": {"question": "What is 6 times 7?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"},
    "math": {"problem": "What is 6 times 7?", "level": "Level 3", "type": "Algebra", "solution": r"So $\boxed{42}$."},
    "math-500": {"problem": "What is 6 times 7?", "answer": "42", "level": 3, "subject": "Algebra", "solution": "?"},
    "aime24": {"ID": "2024-I-1", "Problem": "What is 6 times 7?", "Solution": "…", "Answer": 42},
    "aime25": {"question": "What is 6 times 7?", "answer": "042"},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, tmp_path: Path) -> None:
    env = whale_env.make("math", source=write(tmp_path / "rows.jsonl", LAYOUTS[name]))
    observation, _ = env.reset(options={"task": only(env)})
    assert observation.text == "What is 6 times 7?"
    assert answer(env, r"\boxed{42}") == (1.0, None, True)
    assert answer(env, r"\boxed{41}") == (0.0, "wrong", True)
    facts = env.task(only(env)).data
    assert facts == ({"tier": "3", "topic": "Algebra"} if name.startswith("math") else {})


@pytest.mark.parametrize("ending", ["parquet", "json", "jsonl.gz", "jsonl.zst", "directory"])
def test_file_formats(ending: str, tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(30)]
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif ending == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif ending == "directory":
        path.mkdir()
        write(path / "a.jsonl", *rows[:10])
        write(path / "b.jsonl", *rows[10:])
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        module: Any = pytest.importorskip("gzip" if ending.endswith("gz") else "zstandard")
        path.write_bytes(module.compress(text))
    tasks = datasets.load(path, "math")
    assert len({task.id for task in tasks}) == 30
    assert {task.split for task in tasks} == set(SPLITS)
    assert tasks == datasets.load(str(path), domain="whale/Math-v0")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"problem": "p", "answer": r"\frac{1}{"}, r"row 2: cannot read the reference answer '\\\\frac\{1\}\{'"),
        ({"problem": "p", "answer": ""}, "row 2: the reference answer is empty"),
        ({"problem": "p"}, "row 2 has no reference answer in answer, .*; its columns: problem"),
        ({"text": "p", "answer": "1"}, "row 2 has no problem text in problem, .*; its columns: text, answer"),
        (["p", "1"], "row 2 is list, not an object"),
    ],
)
def test_a_bad_row_is_an_error_that_names_it(row: Any, why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"problem": "q", "answer": "1"}, row)
    with pytest.raises(DatasetError, match=why):
        whale_env.make("math", source=path)


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k.jsonl", {"problem": "q", "answer": "1"})
    (tmp_path / "bad.jsonl").write_text('{"problem": ', encoding="utf-8")
    (tmp_path / "bad.parquet").write_bytes(b"PAR")
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    for name, why in (
        ("gsm8.jsonl", "Did you mean 'gsm8k.jsonl'"),
        ("bad.jsonl", "line 1 is not JSON"),
        ("bad.parquet", "is not a Parquet file"),
        ("empty.jsonl", "holds no row"),
        ("notes.txt", "unknown ending '.txt'; known: .jsonl"),
    ):
        with pytest.raises(DatasetError, match=why):
            datasets.load(tmp_path / name, "math")


def test_hub_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DatasetError, match="needs the datasets package: pip install datasets"):
        datasets.load("gsm8k", "math")
    asked: list[Any] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict[str, str]]:
        asked.append((name, config, split))
        if name == "no/such":
            raise FileNotFoundError("nowhere")
        return [{"question": "What is 1 + 1?", "answer": "#### 2"}]

    fake = ModuleType("datasets")
    fake.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert len(datasets.load("GSM8K", "math")) == 1
    assert len(datasets.load("someone/thing:hard@validation", "math")) == 1
    assert asked == [("openai/gsm8k", "main", "train"), ("someone/thing", "hard", "validation")]
    with pytest.raises(DatasetError, match="cannot fetch 'no/such': FileNotFoundError: nowhere"):
        datasets.load("no/such", "math")
    with pytest.raises(DatasetError, match="Did you mean 'math-500'"):
        datasets.load("math500", "math")


def test_repeated_problems_are_dropped_and_test_data_stays_out_of_training(tmp_path: Path) -> None:
    train = write(
        tmp_path / "a.jsonl", *({"problem": f"What is {n}  +  N?", "answer": n} for n in (1, 2, 2, 3, 4, 5, 6, 7))
    )
    test = write(tmp_path / "b.jsonl", {"problem": "what is 3 + n?", "answer": 3}, {"problem": "New?", "answer": 9})
    problems = load_problems(plan_of({"train": train, "search": train, "test": test}))
    assert [problem.answer for problem in problems] == ["1", "2", "4", "5", "6", "7", "3", "9"]
    assert [problem.answer for problem in problems if problem.split == "test"] == ["3", "9"]
    assert len(load_problems(plan_of([train, test]))) == 8
    with pytest.raises(ValueError, match=r"unknown split 'tset' in source\. Did you mean 'test'"):
        plan_of({"tset": test})


def test_the_split_does_not_depend_on_spelling_and_has_the_right_shares() -> None:
    assert text_key("Find  $x+1$.") == text_key("find $x + 1$ .") != text_key("Find $x+2$.")
    counts = Counter(split_of(text_key(str(n))) for n in range(2000))
    assert 1100 < counts["train"] < 1300 and 330 < counts["search"] < 470 and 330 < counts["test"] < 470
    assert Counter(split_of(text_key(str(n)), ("train", "search")) for n in range(100))["test"] == 0


@pytest.mark.parametrize(("name", "rows"), [("gsm8k_150.jsonl", 150), ("dapo_math_17k_11.jsonl", 11)])
def test_public_samples(name: str, rows: int) -> None:
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip("no sample data here")
    assert len(datasets.load(path, "math")) == rows


def test_load_says_what_it_does_not_know() -> None:
    with pytest.raises(whale_env.UnknownEnvError, match="Did you mean 'math'"):
        datasets.load("x.jsonl", "maths")
    with pytest.raises(ValueError, match="colour"):
        datasets.load("x.jsonl", "math", colour="red")


# Harnesses


def play(ref: str, env: ToolEnv, source: str, replies: Sequence[str]) -> tuple[Trajectory, ScriptedPolicy]:
    left = iter(replies)
    policy = ScriptedPolicy(lambda messages: next(left))
    handle = whale_env.handle("math", {"source": source})
    job = Job(load(ref), handle.prototype.task(only(env)))
    return asyncio.run(rollout([job], handle, policy))[0], policy


@pytest.fixture
def game(tmp_path: Path) -> SimpleNamespace:
    source = write(tmp_path / "one.jsonl", {"problem": "What is 2^10?", "answer": "1024"})
    env = whale_env.make("math", source=source)
    return SimpleNamespace(
        play=lambda harness, *replies: play(f"reference_harnesses.math:{harness}", env, source, replies)
    )


def test_h0_has_no_system_prompt_and_two_turns(game: SimpleNamespace) -> None:
    done, policy = game.play("MathH0", "<python>print(2**10)</python>", r"So \boxed{1024}")
    assert done.score.reward == 1.0 and len(done.turns) == 2
    assert [message["role"] for message in policy.prompts[1]] == ["user", "assistant", "user"]
    assert policy.prompts[1][-1]["content"] == "1024"
    done, _ = game.play("MathH0", "hm", "hm", r"\boxed{1024}")
    assert (done.score.reward, done.score.failure, len(done.turns)) == (0.0, "format", 2)
    assert game.play("MathH0", "It is 1024.", r"\boxed{1023}")[0].score.failure == "wrong"


def test_strong_has_a_result_checked_that_its_program_does_not_print(game: SimpleNamespace) -> None:
    done, policy = game.play("MathStrong", "<python>print(2**10)</python>", r"\boxed{1042}", r"\boxed{1,024}")
    assert done.score.reward == 1.0 and len(done.turns) == 3
    assert "does not appear" in policy.prompts[2][-1]["content"]
    assert policy.prompts[0][0]["role"] == "system" and policy.prompts[0][2]["role"] == "assistant"
    done, _ = game.play("MathStrong", r"\boxed{1024}")
    assert done.score.reward == 1.0 and len(done.turns) == 1
    done, _ = game.play("MathStrong", "<python>print(2**10)</python>", r"\boxed{1}", r"\boxed{2}")
    assert done.score.failure == "wrong" and len(done.turns) == 3


def test_an_episodes_programs_have_a_time_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from whale_env.math import env as math_env

    monkeypatch.setattr(math_env, "EPISODE_SECONDS", 0.9)
    monkeypatch.setattr(math_env, "UNCHARGED", 0.0)
    env = whale_env.make("math")
    env.reset(seed=0)
    observation, *_, info = env.step(ToolCall("python", {"code": "while True: pass"}))
    assert info["error"] is None and observation.data["last_result"]["status"] == "timeout"
    began = time.monotonic()
    for _ in range(3):
        *_, info = env.step(ToolCall("python", {"code": "1 + 1"}))
        assert info["error"] == "python: this episode's programs have run 0.9 s; answer"
    assert time.monotonic() - began < 1.0
    assert env.step(ToolCall("answer", {"text": "\\boxed{1}"}))[2]
    env.reset(seed=1)
    assert env.step(ToolCall("python", {"code": "1 + 1"}))[4]["error"] is None
