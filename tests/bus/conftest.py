"""Quiet logs for tests in which much fails on purpose."""

import pytest
import structlog


@pytest.fixture(autouse=True, scope="session")
def _logging() -> None:
    """Plain tracebacks: those that structlog draws by itself take seconds each."""
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[plain])
