"""A JSON-over-HTTP server on this machine, for tests of clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

Reply = Callable[[str, dict[str, str], dict[str, Any]], tuple[int, bytes]]
"""Path, headers, body → status, reply."""


@contextmanager
def redirecting(to: str, status: int = 307) -> Iterator[str]:
    """Serves redirects to another address; gives its own."""
    with serving(lambda *_: (status, b""), {"Location": to}) as url:
        yield url


@contextmanager
def serving(reply: Reply, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serves until left, with more headers; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            status, answer = reply(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            for name, value in (more or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
