"""The log of attacks: a bounded number of lines."""

import time
from dataclasses import dataclass
from typing import Final

from paidonce.runtime.bounded import Bounded
from paidonce.telemetry import log_security

WINDOW_S: Final = 60.0
MAX_LINES: Final = 300
"""At most this many lines in a window."""
MAX_ADDRESSES: Final = 10_000


@dataclass(slots=True)
class _Seen:
    source: str | None
    repeated: int = 0


class SecurityLog:
    """Logs the first of each action and address in a window, and counts the others."""

    def __init__(self) -> None:
        self._seen: Bounded[tuple[str, str], _Seen] = Bounded(MAX_ADDRESSES)
        self._lines = 0
        self._omitted = 0
        self._ends_s = time.monotonic() + WINDOW_S

    def note(
        self,
        action: str,
        address: str,
        source: str | None = None,
        request_id: str | None = None,
        score: float | None = None,
    ) -> None:
        """Log a rejected request."""
        self.flush_if_due()
        seen = self._seen.get((action, address))
        if seen is not None:
            seen.repeated += 1
        elif self._lines < MAX_LINES:
            self._lines += 1
            self._seen.put((action, address), _Seen(source))
            log_security(
                action,
                address=address,
                source=source,
                request_id=request_id,
                score=None if score is None else round(score, 1),
            )
        else:
            self._omitted += 1

    def flush(self) -> None:
        """Log the counts of the window, and begin a new one."""
        for (action, address), seen in self._seen.items():
            if seen.repeated:
                log_security(action, address=address, source=seen.source, repeated=seen.repeated)
        if self._omitted:
            log_security("others", repeated=self._omitted)
        self._seen.clear()
        self._lines = self._omitted = 0
        self._ends_s = time.monotonic() + WINDOW_S

    def flush_if_due(self) -> None:
        """Flush if the window is over."""
        if time.monotonic() >= self._ends_s:
            self.flush()
