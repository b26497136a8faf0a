"""Who is at fault when a batch fails."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from paidonce.bus.bisect import MAX_RERUNS, BatchBisection, Retries
from paidonce.bus.model import Message
from tests.bus.reading import message

THREE_TIMES = Retries(attempts=3, initial_s=1.0, factor=2.0, max_s=10.0)
MANY = [message("thing", f"key-{number}", 1) for number in range(64)]
ERROR = "no"


@given(
    poison=st.sets(st.integers(0, 63)),
    max_batch=st.integers(1, 64),
    is_refused=st.booleans(),
)
def test_only_the_failing_messages_become_dead_letters(
    poison: set[int], max_batch: int, is_refused: bool
) -> None:
    """BUS-1: in order, whatever else is in the batch, within a bounded number of turns."""
    bisection = BatchBisection(THREE_TIMES, max_batch)
    bad = {MANY[number].id for number in poison}
    left, taken, buried = list(MANY), list[UUID](), list[UUID]()
    for _ in range(64 * 20):
        batch = left[: bisection.limit]
        hopeful = [one for one in batch if bisection.final_failure(one) is None]
        if any(one.id in bad for one in hopeful):
            assert bisection.failed(batch, ERROR, is_refused=is_refused) >= 0.0
            continue
        taken += [one.id for one in hopeful]
        buried += [one.id for one in batch if bisection.final_failure(one) is not None]
        bisection.succeeded(batch)
        left = left[len(batch) :]
    assert taken == [one.id for one in MANY if one.id not in bad]
    assert buried == [one.id for one in MANY if one.id in bad]


def test_delays_grow_until_the_failure_is_final() -> None:
    """BUS-1 RET-1"""
    bisection, alone = BatchBisection(THREE_TIMES, 10), [MANY[0]]
    pauses_s = [bisection.failed(alone, ERROR) for _ in range(2)]
    assert 1.0 <= pauses_s[0] < pauses_s[1] < 3.0
    assert _final(bisection, MANY[0]) is False
    assert bisection.failed(alone, ERROR) == 0.0
    failure = bisection.final_failure(MANY[0])
    assert failure is not None
    assert (failure.attempts, failure.error) == (3, ERROR)


def test_lost_races_are_rerun_a_limited_number_of_times() -> None:
    """BUS-1"""
    bisection = BatchBisection(THREE_TIMES, 10)
    assert all(bisection.lost_race() is not None for _ in range(MAX_RERUNS))
    assert bisection.lost_race() is None
    assert bisection.lost_race() is not None, "it begins again"
    bisection.succeeded([])
    assert all(bisection.lost_race() is not None for _ in range(MAX_RERUNS))


def _final(bisection: BatchBisection, one: Message) -> bool:
    return bisection.final_failure(one) is not None
