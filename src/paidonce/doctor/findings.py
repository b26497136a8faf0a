"""What a check comes to, and how one is made so that nothing it meets is a traceback."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from paidonce.errors import DatabaseAwayError, PaidonceError


class State(StrEnum):
    """What a check came to."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its name, what was found, and what to do."""

    name: str
    state: State
    found: str
    remedy: str = ""


def made(name: str, check: Callable[[], Finding]) -> Finding:
    """Make a check; what goes wrong in it is its finding."""
    try:
        return check()
    except (PaidonceError, OSError) as error:
        return Finding(name, State.PROBLEM, one_line(error), "mend what it names")
    except Exception as error:
        return _defect(name, error)


async def asked(name: str, check: Callable[[], Awaitable[Finding]]) -> Finding:
    """The same for a check of the database."""
    try:
        return await check()
    except Exception as error:
        return _defect(name, error)


def _defect(name: str, error: Exception) -> Finding:
    """A check that failed by itself. Its message may quote anything: only its type is told."""
    told = one_line(error) if isinstance(error, DatabaseAwayError) else type(error).__name__
    return Finding(name, State.PROBLEM, f"cannot be checked: {told}", "mend the others first")


def skipped(names: Iterable[str], why: str) -> list[Finding]:
    """Checks that cannot be made because of another's finding."""
    return [Finding(name, State.SKIPPED, why) for name in names]


def one_line(error: BaseException) -> str:
    """The message of an error, without the line breaks that would tear a table apart."""
    return " ".join(str(error).split())
