"""Logs and metrics."""

from paidonce.telemetry.logs import (
    OutcomeLine,
    configure_logging,
    configure_logging_unless_configured,
    keep_quiet,
    log_outcomes,
    log_security,
    logger,
    mask_with,
    masked,
)

__all__ = [
    "OutcomeLine",
    "configure_logging",
    "configure_logging_unless_configured",
    "keep_quiet",
    "log_outcomes",
    "log_security",
    "logger",
    "mask_with",
    "masked",
]
