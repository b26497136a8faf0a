"""Several processes that serve one socket: started, watched, and stopped together.

Each is the whole service; the database keeps them from doing anything twice. The kernel gives each
connection to one of them. One that dies is replaced, and when the parent dies the others stop.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from typing import Final

from prometheus_client.multiprocess import mark_process_dead

from paidonce.telemetry import configure_logging, logger

log = logger(__name__)

WATCH_S: Final = 1.0
STOP_TIMEOUT_S: Final = 9.5
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
STEADY_S: Final = 10.0
"""Whoever lived that long is replaced at once; the others after a pause that doubles."""

_FORK: Final = multiprocessing.get_context("fork")

Serve = Callable[["Place"], int]
"""Serves until told to stop, and returns the exit code."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the processes this is."""

    number: int = 0
    is_first_start: bool = True
    parent: int | None = None
    """A descriptor that can be read when the parent has died."""

    @property
    def leads(self) -> bool:
        """Whether it does what only one of them should."""
        return self.number == 0


ALONE: Final = Place()


@dataclass(slots=True)
class _Child:
    process: ForkProcess
    place: Place
    started_s: float
    pause_s: float = FIRST_PAUSE_S
    due_s: float | None = None  # when a dead one is replaced


@dataclass(slots=True)
class Processes:
    """The parent: it serves nobody itself."""

    number: int
    serve: Serve
    let_go: Callable[[], None]  # of what only the children should hold when all is to stop
    _children: list[_Child] = field(default_factory=list)
    _is_stopping: bool = False

    def run(self) -> int:
        """Keep the processes running until SIGTERM or SIGINT; returns the exit code."""
        configure_logging()
        life, alive = os.pipe()  # the children hold the first, the parent alone the second
        os.set_inheritable(alive, False)
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, lambda *_: self._stop())
        for number in range(self.number):
            self._children.append(self._started(Place(number, True, life), alive))
        while not self._is_stopping:
            wait([child.process.sentinel for child in self._living()], timeout=WATCH_S)
            for child in self._children:
                self._look_after(child, alive)
        return self._stopped()

    def _started(self, place: Place, alive: int) -> _Child:
        process = _FORK.Process(target=self._run_child, args=(place, alive))
        process.start()
        return _Child(process, place, time.monotonic())

    def _run_child(self, place: Place, alive: int) -> None:
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, signal.SIG_DFL)
        os.close(alive)
        raise SystemExit(self.serve(place))

    def _living(self) -> list[_Child]:
        return [child for child in self._children if child.due_s is None]

    def _look_after(self, child: _Child, alive: int) -> None:
        now_s = time.monotonic()
        if child.due_s is not None:
            if now_s >= child.due_s and not self._is_stopping:
                place = Place(child.place.number, False, child.place.parent)
                again = self._started(place, alive)
                child.process, child.started_s, child.due_s = again.process, again.started_s, None
        elif child.process.exitcode is not None:
            self._mourn(child, now_s)

    def _mourn(self, child: _Child, now_s: float) -> None:
        code = child.process.exitcode
        mark_process_dead(child.process.pid)  # type: ignore[no-untyped-call]
        if self._is_stopping:
            return
        if code == 2 and child.place.is_first_start:  # it has said what is wrong with the settings
            self._stop()
            return
        lived_s = now_s - child.started_s
        child.pause_s = FIRST_PAUSE_S if lived_s > STEADY_S else child.pause_s * 2
        pause_s = 0.0 if lived_s > STEADY_S else min(child.pause_s, LONGEST_PAUSE_S)
        child.due_s = now_s + pause_s
        log.error("process_died", number=child.place.number, code=code, again_in_s=pause_s)

    def _stop(self) -> None:
        """Called by a signal, too, and then while anything else may be under way."""
        self._is_stopping = True
        self.let_go()
        for child in self._living():
            if child.process.is_alive():
                child.process.terminate()

    def _stopped(self) -> int:
        """Wait for all to end, and end by force who does not."""
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for child in self._living():
            child.process.join(max(deadline_s - time.monotonic(), 0.0))
            if child.process.exitcode is None:
                log.error("process_killed", number=child.place.number)
                child.process.kill()
                child.process.join()
        codes = [child.process.exitcode or 0 for child in self._living()]
        unclean = [code for code in codes if code not in (0, -signal.SIGTERM)]
        return abs(unclean[0]) if unclean else 0
