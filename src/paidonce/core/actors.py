"""Who asks for an operation, and what they may do."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Scope(StrEnum):
    """What an API key may do; each scope includes the ones before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks; the audit log records the name."""

    name: str
    scope: Scope


HOST: Final = Actor("host", Scope.ADMIN)
"""The program itself, or the application that mounts it."""
COMMAND_LINE: Final = "cli:"
"""Before the name of a user of the command line."""
