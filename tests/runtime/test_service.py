"""Background services: how they run side by side, fail, and stop."""

import asyncio

import pytest
from structlog.testing import capture_logs

from paidonce.errors import DatabaseUnavailableError
from paidonce.runtime import service as service_module
from paidonce.runtime.service import Backoff, Service, Supervisor
from paidonce.telemetry import metrics

LONG_S = 60.0


@pytest.fixture
def _restarts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "RESTART", Backoff(0.0, 2.0, 0.0, 0.0))


class Working(Service):
    """Works until it is asked to finish; or, if it is stubborn, until it is cancelled."""

    def __init__(self, is_stubborn: bool = False) -> None:
        super().__init__("working")
        self._is_stubborn = is_stubborn
        self.ended = ""

    async def run(self) -> None:
        try:
            await self.pause(LONG_S)
            if self._is_stubborn:
                await asyncio.Event().wait()
            self.ended = "finished"
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise


class Failing(Service):
    """Raises these errors, one with each start, and then works."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__("failing")
        self._errors = list(errors)
        self.works = asyncio.Event()

    async def run(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.works.set()
        await self.pause(LONG_S)


class Returning(Failing):
    """Returns once although nobody asked it to."""

    async def run(self) -> None:
        if self._errors:
            self._errors.pop(0)
            return
        await super().run()


async def test_services_finish_and_are_cancelled_if_they_do_not() -> None:
    """REL-2"""
    good, stubborn = Working(), Working(is_stubborn=True)
    with capture_logs() as logged:
        async with Supervisor(good, stubborn).running():
            await asyncio.sleep(0)
    assert (good.ended, stubborn.ended) == ("finished", "cancelled")
    assert [one["event"] for one in logged if one.get("service")] == ["service_cancelled"]


@pytest.mark.usefixtures("_restarts_at_once")
async def test_a_service_that_raises_is_logged_counted_and_restarted() -> None:
    """OBS-1"""
    counted = metrics.total(metrics.SERVICE_CRASHES)
    failing = Failing(RuntimeError("not foreseen"), RuntimeError("again"))
    with capture_logs() as logged:
        async with Supervisor(failing, Working()).running() as supervisor:
            async with asyncio.timeout(LONG_S):
                await failing.works.wait()
            assert supervisor.degraded == ["failing"], "until it has worked for a while"
    assert metrics.total(metrics.SERVICE_CRASHES) == counted + 2
    crashes = [one for one in logged if one.get("service") == "failing"]
    assert [(one["event"], str(one["exc_info"])) for one in crashes] == [
        ("service_crashed", "not foreseen"),
        ("service_crashed", "again"),
    ]


@pytest.mark.usefixtures("_restarts_at_once")
async def test_a_restarted_service_that_works_steadily_is_healthy_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OBS-1"""
    monkeypatch.setattr(service_module, "STEADY_S", 0.05)
    failing = Failing(RuntimeError("not foreseen"))
    async with Supervisor(failing).running() as supervisor, asyncio.timeout(LONG_S):
        await failing.works.wait()
        while supervisor.degraded:
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("_restarts_at_once")
async def test_a_service_that_returns_unasked_is_restarted() -> None:
    """OBS-1: nothing ends in silence."""
    returning = Returning(RuntimeError())
    with capture_logs() as logged:
        async with Supervisor(returning).running() as supervisor, asyncio.timeout(LONG_S):
            await returning.works.wait()
            assert supervisor.degraded == ["failing"]
    crashes = [one for one in logged if one.get("service") == "failing"]
    assert [one["event"] for one in crashes] == ["service_crashed"]


async def test_a_failing_service_waits_longer_each_time_and_stops_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REL-2: also while it waits for its restart."""
    pauses: list[float] = []
    monkeypatch.setattr(service_module, "RESTART", Backoff(1.0, 2.0, 4.0, 0.0))
    failing = Failing(*(RuntimeError() for _ in range(4)))

    async def pause(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 4:
            failing.finish()

    monkeypatch.setattr(failing, "pause", pause)
    supervisor = Supervisor(failing)
    supervisor.start()
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*supervisor._tasks)
    assert pauses == [1.0, 2.0, 4.0, 4.0]


@pytest.mark.usefixtures("_restarts_at_once")
async def test_a_database_that_is_away_is_logged_in_one_line() -> None:
    """OBS-1: ten services would fill the log with tracebacks."""
    failing = Failing(DatabaseUnavailableError("no connection"))
    with capture_logs() as logged:
        async with Supervisor(failing).running(), asyncio.timeout(LONG_S):
            await failing.works.wait()
    lines = [one for one in logged if one.get("service") == "failing"]
    assert [(one["event"], one["error"]) for one in lines] == [
        ("service_interrupted", "no connection")
    ]
