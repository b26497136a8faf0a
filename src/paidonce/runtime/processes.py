"""Several processes that serve one socket: started, watched, and stopped together.

Each is the whole service; the database keeps them from doing anything twice. The kernel gives each
connection to one of them. A dead process is replaced. When the parent dies, the port is free at
once, and the others answer what they have accepted and end.
"""

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from typing import Final

from prometheus_client.multiprocess import mark_process_dead

from paidonce.runtime.hangup import ignore_hangup, terminal_is_closed
from paidonce.runtime.service import RESTART, STEADY_S, Delays
from paidonce.telemetry import logger

log = logger(__name__)

WATCH_S: Final = 1.0
STOP_TIMEOUT_S: Final = 9.0
ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG: Final = 1

_FORK: Final = multiprocessing.get_context("fork")

Serve = Callable[["Place"], int]
"""Serves until it is stopped, and returns the exit code."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the processes this is."""

    number: int = 0
    is_first_start: bool = True

    @property
    def leads(self) -> bool:
        """Whether it does what only one of them should."""
        return self.number == 0


ALONE: Final = Place()


@dataclass(slots=True)
class _Child:
    place: Place
    process: ForkProcess | None = None  # none yet, or it has died
    started_s: float = 0.0
    delays: Delays = field(default_factory=lambda: Delays(RESTART))
    due_s: float = 0.0  # when a dead one is replaced


@dataclass(slots=True)
class Processes:
    """The parent, which serves nothing itself."""

    number: int
    serve: Serve
    listeners: Sequence[socket.socket]
    _children: list[_Child] = field(default_factory=list)
    _stopped_s: float | None = None  # since when all is to stop

    def run(self) -> int:
        """Keep the processes running until SIGTERM or SIGINT; returns the exit code."""
        life = os.pipe()  # the children read the first end, the parent alone holds the second
        for ending in ENDING:
            signal.signal(ending, lambda *_: self._stop())
        signal.signal(signal.SIGHUP, lambda *_: self._pass_on_hangup())
        for number in range(self.number):
            self._children.append(_Child(Place(number)))
        while self._stopped_s is None:
            for child in self._children:
                self._look_after(child, life)
            wait([process.sentinel for _, process in self._living()], timeout=WATCH_S)
        code = self._ended()
        ignore_hangup()
        return code

    def _look_after(self, child: _Child, life: tuple[int, int]) -> None:
        if child.process is not None and child.process.exitcode is not None:
            self._replace_later(child)
        if child.process is None and time.monotonic() >= child.due_s:
            self._start(child, life)

    def _start(self, child: _Child, life: tuple[int, int]) -> None:
        # Neither a child that has no handlers yet nor one that is not listed may meet a signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            if self._stopped_s is None:
                process = _FORK.Process(target=self._run_child, args=(child.place, life))
                process.start()
                child.process, child.started_s = process, time.monotonic()
        except OSError as error:
            child.due_s = time.monotonic() + RESTART.max_s
            log.error("process_not_started", number=child.place.number, error=str(error))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def _run_child(self, place: Place, life: tuple[int, int]) -> None:
        end_with_parent(life, self.listeners)
        for ending in ENDING:
            signal.signal(ending, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        raise SystemExit(self.serve(place))

    def _living(self) -> list[tuple[Place, ForkProcess]]:
        return [(one.place, one.process) for one in self._children if one.process is not None]

    def _replace_later(self, child: _Child) -> None:
        assert child.process is not None
        code, lived_s = child.process.exitcode, time.monotonic() - child.started_s
        mark_process_dead(child.process.pid)  # type: ignore[no-untyped-call]
        if code == 2 and child.place.is_first_start:
            # A mistake in the settings, which it has printed.
            self._stop()
            return
        if lived_s > STEADY_S:  # replaced at once; others after a growing delay
            child.delays.reset()
            child.due_s = time.monotonic()
        else:
            child.due_s = time.monotonic() + child.delays.next_s()
        child.process, child.place = None, replace(child.place, is_first_start=False)
        log.error("process_died", number=child.place.number, code=code)

    def _pass_on_hangup(self) -> None:
        """Have one of them reload: it asks the others."""
        if terminal_is_closed():
            self._stop()
        for _, process in self._living()[:1]:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGHUP)

    def _stop(self) -> None:
        """Stop all. It is called by signal handlers, too, at any moment."""
        if self._stopped_s is None:
            self._stopped_s = time.monotonic()
            for listener in self.listeners:
                listener.close()
        for _, process in self._living():
            process.terminate()

    def _ended(self) -> int:
        """Wait for all processes to end, and kill those that do not."""
        assert self._stopped_s is not None
        self._stop()
        codes: list[int] = []
        for place, process in self._living():
            process.join(max(self._stopped_s + STOP_TIMEOUT_S - time.monotonic(), 0.0))
            if process.exitcode is None:
                log.error("process_killed", number=place.number)
                process.kill()
                process.join()
            codes.append(process.exitcode or 0)
        unclean = [abs(code) for code in codes if code not in (0, -signal.SIGTERM)]
        return unclean[0] if unclean else 0


def end_with_parent(life: tuple[int, int], listeners: Sequence[socket.socket]) -> None:
    """From now on, stop when the parent dies: in a moment, or in any case in STOP_TIMEOUT_S."""
    watched, held = life
    os.close(held)
    if sys.platform == "linux":
        # A stopped process could neither end nor let go of the port.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    threading.Thread(target=_follow, args=(watched, listeners), daemon=True).start()


def _follow(life: int, listeners: Sequence[socket.socket]) -> None:
    """Not in the event loop: that may be blocked, or not run yet."""
    os.read(life, 1)  # returns when the last writing end is closed
    for listener in listeners:
        with suppress(OSError):  # another process has done it, or has closed it
            listener.shutdown(socket.SHUT_RDWR)  # for all processes that share it
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_TIMEOUT_S)
    os.kill(os.getpid(), signal.SIGKILL)
