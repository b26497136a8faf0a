"""What the log says of attempts against the door: enough to see them, never a line for each."""

import time
from dataclasses import dataclass
from typing import Final

from paidonce import telemetry
from paidonce.engine.bounded import Bounded

WINDOW_S: Final = 60.0
MAX_LINES: Final = 300
"""How many first lines there are in a window, whoever is meant."""
MAX_TOLD_APART: Final = 10_000


@dataclass(slots=True)
class _Seen:
    source: str | None
    repeated: int = 0


class SecurityLog:
    """Writes the first of each action and address in a window, and counts the others."""

    def __init__(self) -> None:
        self._seen: Bounded[tuple[str, str], _Seen] = Bounded(MAX_TOLD_APART)
        self._lines = 0
        self._untold = 0
        self._ends_s = time.monotonic() + WINDOW_S

    def note(
        self,
        action: str,
        address: str,
        source: str | None = None,
        request_id: str | None = None,
        score: float | None = None,
    ) -> None:
        """Something was refused for who sent it, or for what he could not prove."""
        if time.monotonic() >= self._ends_s:
            self.flush()
        seen = self._seen.get((action, address))
        if seen is not None:
            seen.repeated += 1
        elif self._lines < MAX_LINES:
            self._lines += 1
            self._seen.put((action, address), _Seen(source))
            telemetry.log_security(
                action,
                address=address,
                source=source,
                request_id=request_id,
                score=None if score is None else round(score, 1),
            )
        else:
            self._untold += 1

    def flush(self) -> None:
        """Tell how often it all happened again, and begin anew."""
        for (action, address), seen in self._seen.items():
            if seen.repeated:
                telemetry.log_security(
                    action, address=address, source=seen.source, repeated=seen.repeated
                )
        if self._untold:
            telemetry.log_security("more", repeated=self._untold)
        self._seen.clear()
        self._lines = self._untold = 0
        self._ends_s = time.monotonic() + WINDOW_S

    def flush_if_due(self) -> None:
        """The same, once the window is over."""
        if time.monotonic() >= self._ends_s:
            self.flush()
