"""Results of checks."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from paidonce.errors import DatabaseUnavailableError


class CheckState(StrEnum):
    """The state of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: its name (given when it has run), what was found, and what to do."""

    name: str
    state: CheckState
    found: str
    remedy: str = ""


def ok(found: str, remedy: str = "") -> CheckResult:
    return CheckResult("", CheckState.OK, found, remedy)


def warning(found: str, remedy: str) -> CheckResult:
    return CheckResult("", CheckState.WARNING, found, remedy)


def problem(found: str, remedy: str) -> CheckResult:
    return CheckResult("", CheckState.PROBLEM, found, remedy)


def refused(
    error: Exception, name: str = "", remedy: str = "correct the setting that it names"
) -> CheckResult:
    """An error whose message says what is wrong."""
    return CheckResult(name, CheckState.PROBLEM, _one_line(error), remedy)


def defect(error: Exception) -> CheckResult:
    """A check that raised. The message may quote anything, so only the type is shown."""
    is_told = isinstance(error, DatabaseUnavailableError)
    cause = _one_line(error) if is_told else type(error).__name__
    return problem(f"cannot be checked: {cause}", "correct the other problems first")


def skipped(names: Iterable[str], why: str) -> list[CheckResult]:
    """Checks that are not needed, or depend on a failed one."""
    return [CheckResult(name, CheckState.SKIPPED, why) for name in names]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
