"""Several processes that serve one socket: started, watched, and stopped together.

Each is the whole service; the database keeps them from doing anything twice. The kernel gives each
connection to one of them. One that dies is replaced, and when the parent dies the others stop.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from typing import Final

from prometheus_client.multiprocess import mark_process_dead

from paidonce.telemetry import configure_logging, logger

log = logger(__name__)

WATCH_S: Final = 1.0
STOP_TIMEOUT_S: Final = 9.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
STEADY_S: Final = 10.0
"""Whoever lived that long is replaced at once; the others after a pause that doubles."""

ENDING: Final = (signal.SIGTERM, signal.SIGINT)

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
    place: Place
    process: ForkProcess | None = None  # none yet, or it has died
    started_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S / 2
    due_s: float = 0.0  # when a dead one is replaced


@dataclass(slots=True)
class Processes:
    """The parent: it serves nobody itself."""

    number: int
    serve: Serve
    let_go: Callable[[], None]  # of what only the children should hold when all is to stop
    _children: list[_Child] = field(default_factory=list)
    _stopped_s: float | None = None  # since when all is to stop

    def run(self) -> int:
        """Keep the processes running until SIGTERM or SIGINT; returns the exit code."""
        configure_logging()
        life, alive = os.pipe()  # the children hold the first, the parent alone the second
        for ending in ENDING:
            signal.signal(ending, lambda *_: self._stop())
        for number in range(self.number):
            self._children.append(_Child(Place(number, True, life)))
        while self._stopped_s is None:
            for child in self._children:
                self._look_after(child, alive)
            wait([process.sentinel for _, process in self._living()], timeout=WATCH_S)
        return self._ended()

    def _look_after(self, child: _Child, alive: int) -> None:
        if child.process is not None and child.process.exitcode is not None:
            self._mourn(child)
        if child.process is None and time.monotonic() >= child.due_s:
            self._start(child, alive)

    def _start(self, child: _Child, alive: int) -> None:
        # Neither a child that has no handlers yet nor one that is not listed may meet a signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            if self._stopped_s is None:
                process = _FORK.Process(target=self._run_child, args=(child.place, alive))
                process.start()
                child.process, child.started_s = process, time.monotonic()
        except OSError as error:
            child.due_s = time.monotonic() + LONGEST_PAUSE_S
            log.error("process_not_started", number=child.place.number, error=str(error))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def _run_child(self, place: Place, alive: int) -> None:
        for ending in ENDING:
            signal.signal(ending, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.close(alive)
        raise SystemExit(self.serve(place))

    def _living(self) -> list[tuple[Place, ForkProcess]]:
        return [(one.place, one.process) for one in self._children if one.process is not None]

    def _mourn(self, child: _Child) -> None:
        assert child.process is not None
        code, lived_s = child.process.exitcode, time.monotonic() - child.started_s
        mark_process_dead(child.process.pid)  # type: ignore[no-untyped-call]
        if code == 2 and child.place.is_first_start:  # it has said what is wrong with the settings
            self._stop()
            return
        is_steady = lived_s > STEADY_S
        child.pause_s = FIRST_PAUSE_S if is_steady else min(child.pause_s * 2, LONGEST_PAUSE_S)
        child.due_s = time.monotonic() + (0.0 if is_steady else child.pause_s)
        child.process, child.place = None, replace(child.place, is_first_start=False)
        log.error("process_died", number=child.place.number, code=code)

    def _stop(self) -> None:
        """Called by a signal, too, and then while anything else may be under way."""
        if self._stopped_s is None:
            self._stopped_s = time.monotonic()
            self.let_go()
        for _, process in self._living():
            process.terminate()

    def _ended(self) -> int:
        """Wait for all to end, and end by force who does not."""
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
