"""Whoever logs never waits for the reader of the log. Real pipes, real processes."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import fork_server
from tests.support.service import BASIC, KEY, Service, paid, ready_port
from tests.support.tools import until

SMALL_PIPE: Final = 4096
DELIVERIES: Final = 40
"""Their lines are several times what the pipe holds."""

FLOOD: Final = """
import sys
from paidonce.telemetry import log_writer
counted = []
writer = log_writer.LogWriter(counted.append, lambda number: b'{"dropped": %d}\\n' % number)
line = b'{"line": %7d, "text": "' + b"x" * 900 + b'"}\\n'
number = 0
for _ in range(200):  # 20 MB in batches of 100 lines
    writer.write([line % one for one in range(number, number + 100)])
    number += 100
sys.stderr.write(f"{number} {sum(counted)}\\n")
sys.stderr.flush()
sys.stdin.readline()
assert writer.flush(60.0)
"""
SLOW: Final = """
import sys
from paidonce.telemetry import log_writer
writer = log_writer.LogWriter(lambda _: None, lambda _: b"")
writer.write([b"x" * 1_000_000 + b"\\n"])
assert not writer.flush(0.05), "nobody reads"
"""


def test_lines_that_do_not_fit_are_dropped_counted_and_told() -> None:
    """OBS-1 SEC-8: whole lines, in order, and one line that says how many are missing."""
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        # It says this before anybody reads: it did not wait.
        written, dropped = map(int, process.stderr.readline().split())
        process.stdin.write(b"\n")
        process.stdin.flush()
        lines = [json.loads(line) for line in process.stdout]
        assert process.wait(60) == 0, process.stderr.read()
    assert 0 < dropped < written
    numbers = [line["line"] for line in lines if "line" in line]
    assert numbers == sorted(set(numbers))
    assert len(numbers) + dropped == written
    assert lines[-1] == {"dropped": dropped}


def test_the_end_does_not_wait_for_a_reader_that_has_stopped() -> None:
    """§15 Commands: a flush has a deadline, and the thread does not hold up the exit."""
    reading, writing = os.pipe()
    try:
        done = subprocess.run([sys.executable, "-c", SLOW], stdout=writing, timeout=60)
        assert done.returncode == 0
    finally:
        os.close(writing)
        os.close(reading)


@contextmanager
def _served(
    folder: Path, database_url: str, output: int, arguments: Sequence[str] = ()
) -> Iterator[Service]:
    """A server with this standard output."""
    (folder / "paidonce.toml").write_text(f'{BASIC}\n[database]\nurl = "{database_url}"\n')
    variables = {**os.environ, "PAIDONCE_BOOTSTRAP_KEY": KEY}
    with (folder / "stderr").open("wb") as errors:
        command = ("serve", "--port", "0", *arguments)
        process = fork_server.start(command, folder, variables, output, errors.fileno())
    (folder / "stdout").touch()
    service = Service(folder, process, ready_port(folder, process))
    try:
        yield service
    finally:
        service.process.kill()


@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["one", "two"])
def test_a_reader_that_stops_reading_does_not_stop_the_service(
    database_url: str, tmp_path: Path, arguments: Sequence[str]
) -> None:
    """OBS-1 REC-2: nor one that goes away. Every line comes once when it reads again."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, SMALL_PIPE)
    with _served(tmp_path, database_url, writing, arguments) as service:
        os.close(writing)
        answers = [service.deliver(paid(f"s-{number}")).http for number in range(DELIVERIES)]
        assert answers == [200] * DELIVERIES
        lines = _Lines(reading)
        assert until(lambda: len(lines.of("s-")) >= DELIVERIES)
        assert sorted(lines.of("s-")) == sorted(f"s-{number}" for number in range(DELIVERIES))
        lines.stop_reading(service)
        assert until(lambda: _is_dropping(service)), "nobody counts what nobody reads"
        assert service.end() == 0


def _is_dropping(service: Service) -> bool:
    service.deliver(paid("nobody-reads-this"))
    return service.metric("log_lines_dropped_total") > 0


def test_a_service_without_an_output_serves(database_url: str, tmp_path: Path) -> None:
    """OBS-1: `paidonce serve >&-`. Descriptor 1 is then something else, such as the database."""
    (tmp_path / "paidonce.toml").write_text(f'{BASIC}\n[database]\nurl = "{database_url}"\n')
    with (tmp_path / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$0" -m paidonce serve --port 0 >&-', sys.executable],
            cwd=tmp_path,
            env={**os.environ, "PAIDONCE_BOOTSTRAP_KEY": KEY},
            stderr=errors,
        )
    try:
        service = Service(tmp_path, process, ready_port(tmp_path, process))
        assert service.deliver(paid("no-output")).http == 200
        assert until(lambda: service.metric("log_lines_dropped_total") > 0)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()


class _Lines:
    """Reads a pipe in a thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = b""
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_stopped.is_set():
            self._text += os.read(self._descriptor, 65_536)
        os.close(self._descriptor)

    def of(self, prefix: str) -> list[str]:
        """The payments that whole lines are about."""
        whole = self._text[: self._text.rfind(b"\n") + 1].splitlines()
        lines: list[dict[str, Any]] = [json.loads(line) for line in whole]
        names = [str(line.get("external_payment_id")) for line in lines]
        return [name for name in names if name.startswith(prefix)]

    def stop_reading(self, service: Service) -> None:
        """Close the pipe, after one more line."""
        self._is_stopped.set()
        service.deliver(paid("the-last-line"))
        self._thread.join(30)
        assert not self._thread.is_alive()
