"""SIGHUP reloads the settings, from the first line of a command to its last.

A terminal that is closed sends the same signal. Then the process stops, as it would without this.
"""

import os
import signal
import sys
from typing import Protocol


class Reloadable(Protocol):
    """What can be asked to read its settings again."""

    def ask(self) -> None:
        """Ask, from a signal handler."""


_had_terminal = sys.stdin is not None and sys.stdin.isatty()


def reload_on_hangup(reloadable: Reloadable) -> None:
    """Ask for a reload on SIGHUP. A later call replaces an earlier one."""

    def on_hangup(*_: object) -> None:
        if terminal_is_closed():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            reloadable.ask()

    signal.signal(signal.SIGHUP, on_hangup)


def ignore_hangup() -> None:
    """At the end: the interpreter removes all handlers before it exits, but not this."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def terminal_is_closed() -> bool:
    """Whether the process was started in a terminal that is gone."""
    return _had_terminal and not os.isatty(0)
