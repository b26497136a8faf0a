"""Results of checks, and how a check runs without a traceback."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from paidonce.errors import DatabaseUnavailableError, PaidonceError


class CheckState(StrEnum):
    """The state of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: its name, what was found, and what to do."""

    name: str
    state: CheckState
    found: str
    remedy: str = ""


def run_check(name: str, check: Callable[[], CheckResult]) -> CheckResult:
    """Run a check; an exception is its result."""
    try:
        return check()
    except (PaidonceError, OSError) as error:
        return CheckResult(
            name, CheckState.PROBLEM, one_line(error), "correct the setting that it names"
        )
    except Exception as error:
        return _defect(name, error)


async def run_database_check(name: str, check: Callable[[], Awaitable[CheckResult]]) -> CheckResult:
    """Run a check of the database; an exception is its result."""
    try:
        return await check()
    except Exception as error:
        return _defect(name, error)


def _defect(name: str, error: Exception) -> CheckResult:
    """A check that raised. The message may quote anything, so only the type is shown."""
    cause = one_line(error) if isinstance(error, DatabaseUnavailableError) else type(error).__name__
    return CheckResult(
        name, CheckState.PROBLEM, f"cannot be checked: {cause}", "correct the other problems first"
    )


def skipped(names: Iterable[str], why: str) -> list[CheckResult]:
    """Checks that depend on a failed one."""
    return [CheckResult(name, CheckState.SKIPPED, why) for name in names]


def one_line(error: BaseException) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())
