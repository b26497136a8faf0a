"""What operators are shown of replays."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from paidonce.domain.money import format_minor
from paidonce.store.replays import Replay


@dataclass(frozen=True, slots=True)
class DiscardView:
    """How many dead letters were given up, and whether there are more that match."""

    discarded: int
    more: bool


@dataclass(frozen=True, slots=True)
class AppliedView:
    """Payments that were applied, or would be: how many, and how much by currency."""

    number: int
    sums: dict[str, str]


@dataclass(frozen=True, slots=True)
class ReplayView:
    """A replay. `counts` says how many events went, or would go, from which status to which.

    `total` is null where there were too many to count before it began. `sample` shows the first
    changes one by one.
    """

    id: UUID
    status: str
    filter: dict[str, Any]
    dry_run: bool
    rate: int
    total: int | None
    done: int
    counts: dict[str, int]
    applied: AppliedView
    sample: list[dict[str, Any]]
    actor: str
    error: str | None
    created_at: datetime
    started_at: datetime | None
    paused_at: datetime | None
    finished_at: datetime | None


def replay_view(replay: Replay) -> ReplayView:
    applied = replay.progress.applied
    sums_minor: dict[str, int] = applied.get("sums_minor", {})
    return ReplayView(
        id=replay.id,
        status=replay.status,
        filter=replay.filter.as_json(),
        dry_run=replay.is_dry_run,
        rate=replay.rate,
        total=replay.total,
        done=replay.done,
        counts=dict(replay.progress.counts),
        applied=AppliedView(
            applied.get("number", 0),
            {code: format_minor(minor, code) for code, minor in sorted(sums_minor.items())},
        ),
        sample=[dict(one) for one in replay.progress.sample],
        actor=replay.actor,
        error=replay.error,
        created_at=replay.created_at,
        started_at=replay.started_at,
        paused_at=replay.paused_at,
        finished_at=replay.finished_at,
    )
