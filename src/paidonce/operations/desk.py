"""Who asks, and what every verb needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from paidonce.engine.items import Rules
from paidonce.engine.linking import Linker
from paidonce.engine.reprocessing import Reprocessor
from paidonce.services.wallet import WalletService
from paidonce.settings import WalletSettings
from paidonce.store.db import Database
from paidonce.store.listings import LAST_ID

T = TypeVar("T")

MAX_PAGE: Final = 500


class Scope(StrEnum):
    """What a key may do; each includes the one before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks."""

    name: str
    scope: Scope


HOST: Final = Actor("host", Scope.ADMIN)
"""The program itself, or the one that holds it."""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A page of what was searched for.

    `next_cursor` asks for what follows; None at the end. While it is not None, a page may be short
    or empty: so many rows were looked at, and few of them matched.
    """

    items: list[T]
    next_cursor: Any = None  # an id; of bans an address


def first_of(items: Sequence[T], limit: int, cursor: Callable[[T], object]) -> Found[T]:
    """Some of the items; one more than the limit was read, to know whether something follows."""
    shown = list(items[:limit])
    return Found(shown, cursor(shown[-1]) if len(items) > limit else None)


def below(cursor: UUID | None) -> UUID:
    """The largest id that may follow a page."""
    return LAST_ID if cursor is None else UUID(int=max(cursor.int - 1, 0))


class Desk:
    """What the verbs work with. Each opens its own transactions."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        pepper: bytes | None = None,
        wallet: WalletSettings = WalletSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self._database = database
        self._rules = rules
        self._pepper = pepper
        self._linker = Linker(database, rules)
        self._reprocessor = Reprocessor(database, rules)
        self._reservation_expires_s = wallet.reservation_expires_s
        self.wallets = WalletService(database)

    def masked(self, text: str) -> str:
        """The text without what no answer and no log may hold."""
        return self._rules.masker.line(text)
