"""Who asks, and what every verb needs."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from paidonce.engine.items import Rules
from paidonce.engine.linking import Linker
from paidonce.store.db import Database

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


class Desk:
    """What the verbs work with. Each opens its own transactions."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules
        self._linker = Linker(database, rules)
