"""Scores and bans."""

import pytest

from paidonce.guard.bans import POINTS, BanPolicy, Suspicion

POLICY = BanPolicy(threshold=200.0, half_life_s=600.0, first_s=600.0, longest_s=86_400.0)


def test_a_score_halves_in_its_half_life() -> None:
    """SEC-4"""
    assert POLICY.decayed(8.0, 600.0) == 4.0
    assert POLICY.decayed(8.0, 1_200.0) == 2.0
    assert POLICY.decayed(8.0, -1.0) == 8.0, "a clock that goes back adds nothing"
    assert POLICY.decayed(8.0, 600.0) + POINTS[Suspicion.BAD_SIGNATURE] == 5.0


@pytest.mark.parametrize(
    ("times", "minutes"), [(1, 10), (2, 20), (3, 40), (8, 1_280), (9, 1_440), (1_000, 1_440)]
)
def test_a_ban_is_twice_as_long_each_time_and_a_day_at_most(times: int, minutes: int) -> None:
    """SEC-4"""
    assert POLICY.length_s(times) == minutes * 60
