"""Where an operator's notifications arrive."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.scenarios.gateways import Sent


@dataclass
class Listener:
    """What has arrived so far."""

    url: str
    heard: list[Sent] = field(default_factory=list)

    def that_name(self, text: str) -> list[Sent]:
        """What tells of this, in whatever case."""
        return [one for one in list(self.heard) if text.lower().encode() in one.body.lower()]


@contextmanager
def listening() -> Iterator[Listener]:
    """A server that answers every POST with 204 and remembers it."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            names = {name.lower(): value for name, value in self.headers.items()}
            listener.heard.append(Sent(self.path, names, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    listener = Listener(f"http://127.0.0.1:{server.server_port}/hook")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield listener
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
