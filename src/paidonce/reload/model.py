"""A reload of the settings: who asks, who answers, and how it ends."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from paidonce.settings import Settings

MAX_GROUP = 2**31


class ReloadStatus(StrEnum):
    """ASKED until somebody decides for all processes."""

    ASKED = "ASKED"
    TAKEN = "TAKEN"
    REFUSED = "REFUSED"


@dataclass(slots=True)
class Origin:
    """Where a process has its settings from, and how it is asked to read them again.

    Processes that were forked from one parent share its group and its digest key.
    """

    load: Callable[[], Settings]
    group: int = field(default_factory=lambda: secrets.randbelow(MAX_GROUP))
    digest_key: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)
    is_asked: bool = False
    on_asked: Callable[[], object] = lambda: None

    def ask(self) -> None:
        """Ask for a reload, also from a signal handler, and before the service has started."""
        self.is_asked = True
        self.on_asked()


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings that were read and checked, and what taking them would change."""

    settings: Settings = field(repr=False)
    changed: list[str]
    needs_restart: list[str]
    digest: bytes


@dataclass(frozen=True, slots=True)
class ProcessReload:
    """How one process answered. `reason` says why it refused."""

    process: str
    accepted: bool
    reason: str | None
    changed: list[str]
    needs_restart: list[str]
    is_taken: bool


@dataclass(frozen=True, slots=True)
class Reload:
    """How a reload ended. Refused by one process, it is taken by none."""

    id: UUID
    status: ReloadStatus
    reason: str | None
    changed: list[str]
    needs_restart: list[str]
    processes: list[ProcessReload]

    @property
    def is_complete(self) -> bool:
        """Whether every process that accepted uses the new settings."""
        return all(one.is_taken for one in self.processes)
