"""Results of checks."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from paidonce.errors import DatabaseUnavailableError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: its name (given when it has run), what was found, and what to do."""

    name: str
    state: Literal["ok", "warning", "problem", "skipped"]
    found: str
    remedy: str = ""


def ok(found: str, remedy: str = "") -> CheckResult:
    return CheckResult("", "ok", found, remedy)


def warning(found: str, remedy: str) -> CheckResult:
    return CheckResult("", "warning", found, remedy)


def problem(found: str, remedy: str) -> CheckResult:
    return CheckResult("", "problem", found, remedy)


def refused(
    error: Exception, name: str = "", remedy: str = "correct the setting that it names"
) -> CheckResult:
    """An error whose message says what is wrong."""
    return CheckResult(name, "problem", _one_line(error), remedy)


def defect(error: Exception) -> CheckResult:
    """A check that raised. The message may quote anything, so only the type is shown."""
    is_told = isinstance(error, DatabaseUnavailableError)
    cause = _one_line(error) if is_told else type(error).__name__
    return problem(f"cannot be checked: {cause}", "correct the other problems first")


def skipped(names: Iterable[str], why: str) -> list[CheckResult]:
    """Checks that are not needed, or depend on a failed one."""
    return [CheckResult(name, "skipped", why) for name in names]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
