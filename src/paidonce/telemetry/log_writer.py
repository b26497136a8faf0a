"""Writes log lines to standard output, from a thread of its own.

Whoever logs never waits. If the reader of the log is slow, lines wait in a bounded queue; those
that do not fit are dropped and counted, and one line says so when the log flows again.
"""

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""How much waits for the reader, including what is being written; ten thousand lines or so."""
LINGER_S: Final = 0.005
"""After a write the thread sleeps so long: lines that come meanwhile are written at once."""
FLUSH_S: Final = 1.0
"""At the end, the reader has this long to take what waits."""
MAX_ATOMIC_BYTES: Final = select.PIPE_BUF
"""Writes of several processes to one pipe do not mix up to this size."""
NOT_READY_S: Final = 1.0


class LogWriter:
    """A bounded queue of lines, and the thread that writes them.

    The thread starts with the first line. After a fork the child has an empty queue and no thread.
    `count_dropped` is called with the number of lines whenever some are dropped, and
    `dropped_line` makes the line that says how many were.
    """

    def __init__(
        self, count_dropped: Callable[[int], None], dropped_line: Callable[[int], bytes]
    ) -> None:
        self._count_dropped = count_dropped
        self._dropped_line = dropped_line
        self.is_shared = False
        """Whether several processes write to the same place."""
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._dropped = 0
        self._is_idle = False
        self._is_torn = False
        self._thread: threading.Thread | None = None

    def write(self, lines: Sequence[bytes]) -> None:
        """Queue lines, each with its line break. Never waits."""
        size = sum(map(len, lines))
        with self._changed:
            if self._thread is None:
                self._start()
            if self._bytes + size > MAX_WAITING_BYTES:
                lines = self._fitting(lines)
                size = sum(map(len, lines))
            self._lines += lines
            self._bytes += size
            if self._is_idle:
                self._changed.notify_all()

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until everything is written, but not longer; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(self._has_nothing_to_do, timeout_s)

    def _has_nothing_to_do(self) -> bool:
        return self._thread is None or (self._is_idle and not self._lines)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def _fitting(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        """As many lines as there is room for; counts the others."""
        room, number = MAX_WAITING_BYTES - self._bytes, 0
        for line in lines:
            room -= len(line)
            if room < 0:
                break
            number += 1
        self._drop(len(lines) - number)
        return lines[:number]

    def _drop(self, number: int) -> None:
        self._dropped += number
        self._count_dropped(number)

    def _run(self) -> None:
        is_flowing = True
        while True:
            lines, dropped = self._take(is_flowing)
            is_flowing = self._is_written(lines)
            if is_flowing and dropped:
                is_flowing = self._is_written([self._dropped_line(dropped)])
                dropped = 0 if is_flowing else dropped
            elif not is_flowing:
                self._count_dropped(len(lines))
                dropped += len(lines)
            with self._changed:
                self._bytes -= sum(map(len, lines))
                self._dropped += dropped
            time.sleep(LINGER_S)

    def _take(self, is_flowing: bool) -> tuple[list[bytes], int]:
        """Wait for lines; returns them, and how many were dropped after the last of them."""
        with self._changed:
            self._is_idle = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines or (is_flowing and self._dropped))
            self._is_idle = False
            lines, self._lines = self._lines, []
            dropped, self._dropped = self._dropped, 0
            return lines, dropped

    def _is_written(self, lines: Sequence[bytes]) -> bool:
        """Write the lines; returns whether it was possible. Nobody can be told if it was not."""
        try:
            for piece in _atomic_pieces(lines) if self.is_shared else [b"".join(lines)]:
                self._write_whole(b"\n" + piece if self._is_torn else piece)
        except (OSError, ValueError):  # the reader is gone, the disk is full, there is no output
            return False
        return True

    def _write_whole(self, data: bytes) -> None:
        stream = sys.stdout
        if stream is None:
            raise OSError("standard output is closed")
        try:
            descriptor = stream.fileno()
        except (AttributeError, OSError, ValueError):  # one that a host program has put there
            stream.write(data.decode())
            stream.flush()
            return
        left = memoryview(data)
        try:
            while left:
                try:
                    left = left[os.write(descriptor, left) :]
                except BlockingIOError:
                    select.select([], [descriptor], [], NOT_READY_S)
        finally:
            if len(left) < len(data):
                self._is_torn = len(left) > 0


def _atomic_pieces(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Whole lines, joined as far as one write stays atomic."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        if piece and size + len(line) > MAX_ATOMIC_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    yield b"".join(piece)
