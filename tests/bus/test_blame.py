"""Who is at fault when a batch fails."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from paidonce.bus.blame import MAX_RERUNS, Blame, Retries
from paidonce.bus.messages import Message
from tests.bus.reading import message

THREE_TIMES = Retries(attempts=3, initial_s=1.0, factor=2.0, max_s=10.0)
MANY = [message("thing", f"key-{number}", 1) for number in range(64)]
ERROR = "no"


@given(
    poison=st.sets(st.integers(0, 63)),
    max_batch=st.integers(1, 64),
    is_refused=st.booleans(),
)
def test_who_is_at_fault_is_buried_and_nobody_else(
    poison: set[int], max_batch: int, is_refused: bool
) -> None:
    """BUS-1: in order, whatever else is in the batch, within a bounded number of turns."""
    blame = Blame(THREE_TIMES, max_batch)
    bad = {MANY[number].id for number in poison}
    left, taken, buried = list(MANY), list[UUID](), list[UUID]()
    for _ in range(64 * 20):
        batch = left[: blame.limit]
        hopeful = [one for one in batch if blame.final(one) is None]
        if any(one.id in bad for one in hopeful):
            assert blame.failed(batch, ERROR, is_refused=is_refused) >= 0.0
            continue
        taken += [one.id for one in hopeful]
        buried += [one.id for one in batch if blame.final(one) is not None]
        blame.succeeded(batch)
        left = left[len(batch) :]
    assert taken == [one.id for one in MANY if one.id not in bad]
    assert buried == [one.id for one in MANY if one.id in bad]


def test_pauses_grow_until_it_is_final() -> None:
    """BUS-1 RET-1"""
    blame, alone = Blame(THREE_TIMES, 10), [MANY[0]]
    pauses_s = [blame.failed(alone, ERROR) for _ in range(2)]
    assert 1.0 <= pauses_s[0] < pauses_s[1] < 3.0
    assert _final(blame, MANY[0]) is False
    assert blame.failed(alone, ERROR) == 0.0
    failure = blame.final(MANY[0])
    assert failure is not None
    assert (failure.attempts, failure.error) == (3, ERROR)


def test_lost_races_are_run_again_but_not_for_ever() -> None:
    """BUS-1"""
    blame = Blame(THREE_TIMES, 10)
    assert all(blame.lost_race() is not None for _ in range(MAX_RERUNS))
    assert blame.lost_race() is None
    assert blame.lost_race() is not None, "it begins again"
    blame.succeeded([])
    assert all(blame.lost_race() is not None for _ in range(MAX_RERUNS))


def _final(blame: Blame, one: Message) -> bool:
    return blame.final(one) is not None
