"""Starts `paidonce` commands by fork from a process that has imported the program.

A test run starts hundreds of real processes. Most of the CPU time of each start is importing, which
is done only once here. Each command is a process of its own, with its own environment, folder and
output, and ends like any Python program; it can be killed like any process.

The server belongs to one test process. When that ends, also by SIGKILL, the server kills all
processes that were started from there, which it knows by a variable of their environment, stops the
database servers that were registered and removes their folders, so that an interrupted run leaves
nothing behind.
"""

import atexit
import ctypes
import json
import os
import random
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAX_REQUEST: Final = 1024 * 1024
PR_SET_PDEATHSIG: Final = 1
_EXIT_CODE: Final = struct.Struct("i")
_INTERPRETER: Final = ("PYTHON", "PROMETHEUS_MULTIPROC_DIR", "LD_PRELOAD")
"""Variables that matter when a program starts; PYTHONPATH only adds modules."""
_MARK: Final = "TEST_PROCESS"
"""The variable by which processes that a test process started are found."""


class ForkedProcess:
    """A process that the fork server started, with the interface of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection

    def poll(self) -> int | None:
        """The exit code, if the process has ended."""
        return self._receive(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process. Raises subprocess.TimeoutExpired."""
        code = self._receive(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("paidonce", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _receive(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            with suppress(TimeoutError, BlockingIOError):
                answer = self._connection.recv(_EXIT_CODE.size)
                (self.returncode,) = _EXIT_CODE.unpack(answer) if answer else (-signal.SIGKILL,)
                self._connection.close()
        return self.returncode


Process = ForkedProcess | subprocess.Popen[bytes]


def start(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdout: int,
    stderr: int,
) -> Process:
    """Start a `paidonce` command with these open files as its output."""
    is_measured = "COVERAGE_PROCESS_CONFIG" in environment  # coverage does not follow a fork
    is_other = _interpreter_of(environment) != _interpreter_of(os.environ)
    if is_measured or is_other or "--processes" in arguments:
        command = [sys.executable, "-m", "paidonce", *arguments]
        return subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdout=stdout, stderr=stderr
        )
    request = {"arguments": list(arguments), "folder": str(folder), "env": dict(environment)}
    connection = _client().send(request, [stdout, stderr])
    (pid,) = _EXIT_CODE.unpack(connection.recv(_EXIT_CODE.size))
    return ForkedProcess(connection, pid)


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(arguments, folder, environment, out.fileno(), err.fileno())
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(["paidonce", *arguments], code, *texts)


def remove_at_the_end(folder: Path) -> None:
    """Stop database servers in this folder and remove it when the test process ends."""
    _client().send({"cleanup": str(folder)}, []).close()


def _interpreter_of(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_INTERPRETER) and name != "PYTHONPATH"
    }


class _Client:
    """The connection of this test process to its fork server."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="paidonce-fork-"))
        os.environ[_MARK] = folder.name
        self.pid = os.getpid()
        self._path = str(folder / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        listener.listen(64)
        life, self._alive = os.pipe()  # closed by the kernel when this process ends
        os.set_inheritable(life, True)
        listener.set_inheritable(True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(listener.fileno()), str(life)],
            cwd=Path(__file__).parents[2],
            pass_fds=[listener.fileno(), life],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        listener.close()
        os.close(life)
        self.send({"cleanup": str(folder)}, []).close()
        atexit.register(self._stop)

    def send(self, request: Mapping[str, Any], files: Sequence[int]) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        socket.send_fds(connection, [json.dumps(request).encode()], files)
        connection.shutdown(socket.SHUT_WR)
        return connection

    def _stop(self) -> None:
        if os.getpid() == self.pid:
            os.close(self._alive)
            self._process.wait(60)


_clients: list[_Client] = []


def _client() -> _Client:
    if not _clients or _clients[-1].pid != os.getpid():
        _clients.append(_Client())
    return _clients[-1]


@dataclass
class _Forked(BaseException):
    """Leaves the loop of the server in a new child."""

    request: Mapping[str, Any]
    files: Sequence[int]


class _Server:
    def __init__(self, listener: socket.socket, life: int) -> None:
        self._listener = listener
        self._life = life
        self._children: dict[int, socket.socket] = {}
        self._folders: list[Path] = []

    def run(self) -> None:
        """Serve until the test process ends."""
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        signal.set_wakeup_fd(woken.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            for one in (self._listener, wake, self._life):
                selector.register(one, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if wake in ready:
                    wake.recv(4096)
                    self._reap()
                if self._listener in ready:  # first: it may say what has to be cleaned up
                    self._accept()
                elif self._life in ready:
                    return self._clean_up()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        text, files, _, _ = socket.recv_fds(connection, MAX_REQUEST, 2)
        while part := connection.recv(MAX_REQUEST):
            text += part
        request = json.loads(text)
        if "cleanup" in request:
            self._folders.append(Path(request["cleanup"]))
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            raise _Forked(request, files)
        for file in files:
            os.close(file)
        self._children[pid] = connection
        connection.sendall(_EXIT_CODE.pack(pid))

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._children.pop(pid) as connection, suppress(OSError):
                connection.sendall(_EXIT_CODE.pack(os.waitstatus_to_exitcode(status)))

    def _clean_up(self) -> None:
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for folder in self._folders:
            _stop_databases(folder)
        _kill_marked(os.environ[_MARK])
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


def _kill_marked(mark: str) -> None:
    """Kill the processes that have inherited the environment of the test process."""
    variable = f"{_MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_ours = variable in (process / "environ").read_bytes().split(b"\0")
            if is_ours and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGKILL)


def _stop_databases(folder: Path) -> None:
    pids = []
    for file in folder.rglob("postmaster.pid"):
        with suppress(OSError, ValueError, IndexError):
            pids.append(int(file.read_text().split()[0]))
            os.kill(pids[-1], signal.SIGQUIT)
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s and any(map(_is_alive, pids)):
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended may stay a zombie where nobody waits for it."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _become(forked: _Forked) -> None:
    """Turn this child into the command."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for file, standard in zip(forked.files, (1, 2), strict=True):
        os.dup2(file, standard)
        os.close(file)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(forked.request["env"])
    os.chdir(forked.request["folder"])
    sys.path[0] = forked.request["folder"]
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in added if folder and folder not in sys.path]
    random.seed()
    import paidonce.__main__ as program

    sys.argv = [str(program.__file__), *forked.request["arguments"]]
    program.main()


def _main() -> None:
    import paidonce.asgi
    import paidonce.cli.server  # noqa: F401 - imported once, for every child

    listener = socket.socket(fileno=int(sys.argv[1]))
    try:
        _Server(listener, int(sys.argv[2])).run()
        return
    except _Forked as forked:
        child = forked
    listener.detach()
    _become(child)


if __name__ == "__main__":
    _main()
