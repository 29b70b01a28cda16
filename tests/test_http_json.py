"""`post_json` against servers that are broken or hostile: one line each, within bounds."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from http_server import serving

from whale_env import http_json
from whale_env.http_json import RequestError, post_json


@contextmanager
def sending(head: bytes, pieces: int = 0, pause: float = 0.0) -> Iterator[str]:
    """A server that says what it is told to, then spaces, piece by piece, for as long as somebody listens."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(1 << 16)
                    connection.sendall(head)
                    for _ in range(pieces):
                        time.sleep(pause)
                        connection.sendall(b" " * 4096)
                except OSError:
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a": "' + b" " * 200_000 + b'"}', "more than 100000 bytes"),
        (b"[" * 90_000, "gave no JSON"),
        (b"[" * 900 + b"]" * 900, "nested deeper than 100"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"1" * 90_000, "gave no JSON"),
        (b"\xff\xfe", "gave no JSON"),
        (gzip.compress(b" " * 10_000_000), "gave no JSON"),
        (b"", "gave no JSON"),
    ],
    ids=["long", "deep", "nested", "nan", "number", "bytes", "gzip", "empty"],
)
def test_what_is_no_bearable_json_is_one_line(body: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "MAX_REPLY", 100_000)
    with (
        serving(lambda path, headers, asked: (200, body)) as url,
        pytest.raises(RequestError, match=words) as caught,
    ):
        post_json(url, {})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_reply_that_never_ends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "MAX_REPLY", 100_000)
    with (
        sending(b"HTTP/1.0 200 OK\r\n\r\n", 1_000_000) as url,
        pytest.raises(RequestError, match="more than 100000"),
    ):
        post_json(url, {})


def test_a_reply_that_trickles_is_given_up() -> None:
    began = time.monotonic()
    with sending(b"HTTP/1.0 200 OK\r\n\r\n", 400, 0.05) as url, pytest.raises(RequestError, match="does not end"):
        post_json(url, {}, timeout=0.5, tries=1)
    assert time.monotonic() - began < 10


def test_a_reply_that_is_cut_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "FIRST_WAIT", 0.001)
    head = b'HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\n{"a": 1}'
    with sending(head) as url, pytest.raises(RequestError, match="cut off, 92 bytes before its end"):
        post_json(url, {}, tries=2)


@pytest.mark.parametrize(
    "head", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", b""]
)
def test_what_is_no_http_is_one_line(head: bytes) -> None:
    with sending(head) as url, pytest.raises(RequestError, match="nothing answers at") as caught:
        post_json(url, {}, tries=1)
    assert "\n" not in str(caught.value)


def test_a_redirect_carries_nothing_elsewhere() -> None:
    seen: list[str] = []

    def other(path: str, headers: dict[str, str], body: object) -> tuple[int, bytes]:
        seen.append(path)
        return 200, b"{}"

    with serving(other) as elsewhere:
        head = f"HTTP/1.0 302 Found\r\nLocation: {elsewhere}/there\r\n\r\n".encode()
        with sending(head) as url, pytest.raises(RequestError, match="HTTP 302"):
            post_json(url, {}, headers={"Authorization": "Bearer secret"})
    assert not seen
