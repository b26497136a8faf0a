"""Cuts what arrives on a connection into heads, bodies and chunks, each within its limit (SEC-8).

The parser counts nothing, and joins the parts of an unfinished header anew with every part, which
takes the square of its length. So it gets a head only when all of it is there. What ends a request
is decided here and by the parser; where they differ, the request is invalid. Trailers are checked
and dropped: they never become headers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from paidonce.api.problems import Problem, ProblemError

MAX_EMPTY_BYTES: Final = 16
"""Empty lines before a request; some old clients send one after a body."""
MAX_CHUNK_LINE_BYTES: Final = 1024
"""The line before a chunk: its size and its extensions."""
CHUNK_SHARE: Final = 16
"""Lines of chunks may take the room of the headers, and one byte for so many of the body."""
MAX_LENGTH_DIGITS: Final = 18

INVALID: Final = Problem(400, "INVALID_HTTP", "This is not a valid HTTP/1.1 request.")
_URL_TOO_LONG: Final = Problem(414, "URL_TOO_LONG", "The URL is too long.")
_HEADERS_TOO_LARGE: Final = Problem(431, "HEADERS_TOO_LARGE", "The headers are too large.")
_CHUNKS_TOO_SMALL: Final = Problem(
    400, "CHUNKS_TOO_SMALL", "The chunks are too small, or their extensions too large."
)

_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_BARE_LINE_END: Final = re.compile(rb"(?<!\r)\n")
_TEXT: Final = rb"[^\x00-\x08\x0a-\x1f\x7f]*"
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(;" + _TEXT + rb")?\r\n")
_TRAILERS: Final = re.compile(rb"\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+:" + _TEXT + rb"\r\n)*\r\n")

_Step = Callable[[bytes, int], tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How large a request may be."""

    url_bytes: int
    header_bytes: int
    headers: int
    body_bytes: int


class Framing:
    """Where the requests of one connection begin and end.

    `read` returns the next piece for the parser. The parser's callbacks confirm what it found:
    `begin_body` after the headers, `end` after the request.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._always_fits = min(limits.url_bytes, limits.header_bytes)
        self._step: _Step = self._head
        self._rest = bytearray()  # of an unfinished head, chunk line or trailer section
        self._left = 0  # bytes of the body, or of the chunk and the line end after it
        self._empty_bytes = 0
        self._is_http_1_0 = False
        self._chunk_bytes = 0  # announced so far
        self._chunk_line_bytes = 0
        self.is_between = True
        """Whether the last request has ended and no byte of the next has come."""

    def read(self, data: bytes, at: int) -> tuple[bytes, int]:
        """The next piece, perhaps empty, and where it ends in the data. Raises ProblemError."""
        return self._step(data, at)

    def begin_body(self, headers: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
        """The headers have been parsed; returns them by name.

        Raises ProblemError if it is not clear which one counts.
        """
        if len(headers) > self._limits.headers:
            raise ProblemError(_HEADERS_TOO_LARGE)
        fields = dict(headers)
        if len(fields) < len(headers) and _is_ambiguous([name for name, _ in headers]):
            raise ProblemError(INVALID)
        coding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
        if coding is not None:
            if length is not None or coding.lower() != b"chunked" or self._is_http_1_0:
                raise ProblemError(INVALID)
            self._chunk_bytes = self._chunk_line_bytes = 0
            self._step = self._chunk_line
        elif length is not None:
            if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
                raise ProblemError(INVALID)
            self._left = int(length)
            if self._left:
                self._step = self._body
        return fields

    def end(self) -> None:
        """The request has been parsed. Raises ProblemError if the body is not at its end."""
        if self._left or self._step != _unexpected:
            raise ProblemError(INVALID)
        self._step = self._head
        self._empty_bytes = 0
        self.is_between = True

    def _head(self, data: bytes, at: int) -> tuple[bytes, int]:
        if not self._rest:
            if data[at] in _LINE_END:
                at = self._after_empty_lines(data, at)
                if at == len(data):
                    return b"", at
            if not 65 <= data[at] <= 90:  # methods begin with A to Z
                raise ProblemError(INVALID)
            self.is_between = False
        head, at = self._until(_HEAD_END, data, at)
        found = head or self._rest
        if len(found) > self._always_fits or (not head and b"\n" in data):
            self._check_head(found)
        if head:
            line = head.find(_LINE_END)
            self._is_http_1_0 = head.startswith(b"HTTP/1.0", line - 8)
            if not self._is_http_1_0 and not head.startswith(b"HTTP/1.1", line - 8):
                raise ProblemError(INVALID)
            self._step = _unexpected
        return head, at

    def _after_empty_lines(self, data: bytes, at: int) -> int:
        while at < len(data) and data[at] in _LINE_END:
            self._empty_bytes += 1
            if self._empty_bytes > MAX_EMPTY_BYTES:
                raise ProblemError(INVALID)
            at += 1
        return at

    def _check_head(self, head: bytes | bytearray) -> None:
        bare = _BARE_LINE_END.search(head)  # the parser would refuse it, too, at the end
        if bare is not None:
            head = head[: bare.end()]
        line = head.find(_LINE_END)
        if line < 0:
            line = len(head) - 1  # the last byte may be half of the line end
        if line > self._limits.url_bytes:
            raise ProblemError(_URL_TOO_LONG)
        if len(head) - line > self._limits.header_bytes:
            raise ProblemError(_HEADERS_TOO_LARGE)
        if bare is not None:
            raise ProblemError(INVALID)

    def _body(self, data: bytes, at: int) -> tuple[bytes, int]:
        end = min(at + self._left, len(data))
        self._left -= end - at
        if not self._left:
            self._step = _unexpected
        return data[at:end], end

    def _chunk_line(self, data: bytes, at: int) -> tuple[bytes, int]:
        line, at = self._until(_LINE_END, data, at)
        if len(line or self._rest) > MAX_CHUNK_LINE_BYTES:
            raise ProblemError(_CHUNKS_TOO_SMALL)
        if not line:
            return b"", at
        found = _CHUNK_LINE.fullmatch(line)
        if found is None:
            raise ProblemError(INVALID)
        size = int(found[1], 16)
        self._count_chunk(size, len(line))
        if size:
            self._left = size + len(_LINE_END)
            self._step = self._chunk
            return line, at
        self._rest += _LINE_END
        self._step = self._trailers
        return line[: -len(_LINE_END)], at

    def _count_chunk(self, size: int, line_bytes: int) -> None:
        self._chunk_bytes += size
        self._chunk_line_bytes += line_bytes + len(_LINE_END)
        if self._chunk_line_bytes > self._limits.header_bytes + self._chunk_bytes // CHUNK_SHARE:
            raise ProblemError(_CHUNKS_TOO_SMALL)

    def _chunk(self, data: bytes, at: int) -> tuple[bytes, int]:
        piece, at = self._body(data, at)
        if not self._left:
            self._step = self._chunk_line
        return piece, at

    def _trailers(self, data: bytes, at: int) -> tuple[bytes, int]:
        trailers, at = self._until(_HEAD_END, data, at)
        found = trailers or self._rest
        if len(found) > self._limits.header_bytes:
            raise ProblemError(_HEADERS_TOO_LARGE)
        if found.count(_LINE_END) - 2 > self._limits.headers:
            raise ProblemError(_HEADERS_TOO_LARGE)
        if not trailers:
            return b"", at
        if _TRAILERS.fullmatch(trailers) is None:
            raise ProblemError(INVALID)
        self._step = _unexpected
        return _HEAD_END, at

    def _until(self, mark: bytes, data: bytes, at: int) -> tuple[bytes, int]:
        """All up to the mark, or nothing if it has not come yet."""
        rest = self._rest
        if not rest:
            end = data.find(mark, at)
            if end >= 0:
                end += len(mark)
                return data[at:end], end
        known = len(rest)
        rest += data[at:] if at else data
        end = rest.find(mark, max(known - len(mark), 0)) if known else -1
        if end < 0:
            return b"", len(data)
        end += len(mark)
        piece = bytes(rest[:end])
        rest.clear()
        return piece, at + end - known


def _unexpected(data: bytes, at: int) -> tuple[bytes, int]:
    """The parser has not confirmed what was found."""
    raise ProblemError(INVALID)


_SINGLE: Final = (
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"expect",
    b"host",
    b"transfer-encoding",
)
"""Headers of which a second one would leave open which one counts."""


def _is_ambiguous(names: list[bytes]) -> bool:
    return any(names.count(name) > 1 for name in _SINGLE)
