"""A run directory that others wrote to leads nowhere, keeps no password, and no redirect takes a key along."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from harness_sdk.policies.base import PolicyError, Request, Sampling
from optimizers.record.rundir import RunDir, RunDirError
from whale_env.http_json import RequestError, holds_login, post_json, without_login

CONFIG = {"env_args": '{"source": "a.csv"}', "backend": {"url": ""}}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run with one finished unit, and what an unfinished one logged."""
    run = RunDir.open(tmp_path / "run", CONFIG, resume=False)
    run.append("metrics.jsonl", {"step": 1})
    run.append("trajectories/train.jsonl", {"reward": 1})
    run.finish("one", 1, 0.0)
    run.append("metrics.jsonl", {"step": 2})
    return run


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that is none of the run's business."""
    file = tmp_path / "outside.jsonl"
    file.write_text('{"precious": 1}\n')
    return file


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl", "new.jsonl", "config.json", "trajectories/x.jsonl"])
def test_a_link_in_a_run_is_not_followed(run: RunDir, outside: Path, name: str) -> None:
    before = outside.read_bytes()
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(outside)
    with pytest.raises(RunDirError, match=f"{name} is a link, which no run makes"):
        RunDir.open(run.path, CONFIG, resume=True)
    assert outside.read_bytes() == before


def test_a_folder_that_is_a_link_and_a_pipe_are_refused(run: RunDir, tmp_path: Path, outside: Path) -> None:
    (run.path / "trajectories").rename(tmp_path / "elsewhere")
    (run.path / "trajectories").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirError, match="trajectories is a link"):
        RunDir.open(run.path, CONFIG, resume=True)
    (run.path / "trajectories").unlink()
    os.mkfifo(run.path / "metrics.ndjson")
    with pytest.raises(RunDirError, match="no plain file"):
        RunDir.open(run.path, CONFIG, resume=True)


@pytest.mark.parametrize("name", ["metrics.jsonl", "journal.jsonl", "ledger.jsonl", "trajectories/train.jsonl"])
def test_a_file_with_another_name_elsewhere_is_written_anew(run: RunDir, tmp_path: Path, name: str) -> None:
    target, other = run.path / name, tmp_path / "other"
    target.parent.mkdir(exist_ok=True)
    target.touch()
    os.link(target, other)
    with target.open("a") as file:
        file.write('{"torn')
    before = other.read_bytes()
    again = RunDir.open(run.path, CONFIG, resume=True)
    again.append(name, {"step": 3})
    assert other.read_bytes() == before and target.stat().st_nlink == 1
    assert "torn" not in target.read_text() and again.done() == ["one"]


def test_a_run_is_resumed_through_a_link_to_it(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run.path)
    assert RunDir.open(tmp_path / "latest", CONFIG, resume=True).done() == ["one"]


def test_a_planted_scratch_file_is_not_written_through(run: RunDir, outside: Path) -> None:
    before = outside.read_bytes()
    (run.path / ".report.html.tmp").symlink_to(outside)
    run.write_text("report.html", "<p>")
    assert outside.read_bytes() == before and (run.path / "report.html").read_text() == "<p>"


@pytest.mark.parametrize(
    "config",
    [
        {"backend": {"url": "http://me:hunter2@host:8000/v1"}},
        {"env_args": '{"retriever": "https://hunter2@host/retrieve"}'},
    ],
)
def test_a_password_in_an_address_is_kept_nowhere(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(RunDirError, match=r"user name or password .* give a key in the environment") as caught:
        RunDir.open(tmp_path / "run", config, resume=False)
    assert "hunter2" not in str(caught.value) and not (tmp_path / "run").exists()


def test_logins_are_found_in_addresses_only() -> None:
    for text in ("http://host/a@b", "openai:gpt@https://host/v1", "mail me@host", "hf://datasets/a@main"):
        assert not holds_login(text) and without_login(text) == text
    assert without_login("at http://me:word@host/v1, or ftp://x@y") == "at http://host/v1, or ftp://y"
    with pytest.raises(RequestError) as caught:
        post_json("http://me:hunter2@127.0.0.1:1/x", {}, tries=1)
    assert "hunter2" not in str(caught.value)


class Handler(BaseHTTPRequestHandler):
    """Keeps the headers of requests; redirects if its server says where to."""

    def do_POST(self) -> None:
        """Answers a request."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(dict(self.headers))  # type: ignore[attr-defined]
        to = self.server.to  # type: ignore[attr-defined]
        self.send_response(self.server.status if to else 200)  # type: ignore[attr-defined]
        if to:
            self.send_header("Location", to)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture(params=[301, 302, 303, 307, 308])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """One server that redirects to another; what both saw."""
    with ExitStack() as stack:
        both = [HTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        for server in both:
            vars(server).update(seen=[], to="", status=request.param)
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            for end in (server.server_close, thread.join, server.shutdown):
                stack.callback(end)
        first, second = both
        vars(first)["to"] = f"http://localhost:{second.server_port}/v1/there"
        yield f"http://127.0.0.1:{first.server_port}/v1", vars(first)["seen"], vars(second)["seen"]


def test_no_redirect_takes_a_key_along(servers: tuple[str, list[Any], list[Any]]) -> None:
    url, seen, elsewhere = servers
    with pytest.raises(RequestError, match="it redirects to http://localhost"):
        post_json(f"{url}/chat/completions", {}, headers={"x-api-key": "secret-key"}, tries=1)
    assert len(seen) == 1 and not elsewhere


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.filterwarnings("ignore:.*left out")
def test_no_policy_follows_a_redirect(servers: tuple[str, list[Any], list[Any]], kind: str) -> None:
    pytest.importorskip(kind)
    from harness_sdk.policies import AnthropicPolicy, OpenAIPolicy

    url, seen, elsewhere = servers
    policy: Any = {"openai": OpenAIPolicy, "anthropic": AnthropicPolicy}[kind](
        "model", base_url=url, api_key="secret-key-123", retries=0
    )
    request = Request([{"role": "user", "content": "hi"}], [], Sampling(temperature=1.0, top_k=0))

    async def ask() -> None:
        await policy.generate(request)

    with pytest.raises(PolicyError, match=r"redirects \(30\d\) to http://localhost.*give that address"):
        asyncio.run(ask())
    assert seen and not elsewhere
