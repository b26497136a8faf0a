"""Archives old months of events as files: gzipped JSON Lines, each with a manifest (INB-4).

A month is written to a temporary file, read back from the disk and compared, renamed, and then gets
its manifest; only after that its table is dropped. A file without a manifest is not finished: a
process that was killed leaves one, and the next run begins again. The files contain payment data,
so only their owner may read them.
"""

import asyncio
import gzip
import hashlib
import os
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from uuid import uuid4

import orjson

from paidonce.clock import CLOCK
from paidonce.db.queries import Connection, load_queries
from paidonce.db.search import FIRST_ID
from paidonce.errors import ArchiveError
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash

if TYPE_CHECKING:
    from hashlib import _Hash

QUERIES: Final = load_queries(__file__)

PAGE_EVENTS: Final = 256
"""Events read at a time; each may be as large as a body may."""
COMPRESSION: Final = 6
READ_BYTES: Final = 1024 * 1024
OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file contains."""

    file: str
    events: int
    first_id: str | None
    last_id: str | None
    bytes: int
    sha256: str  # of the file
    content_sha256: str  # of what is in it, uncompressed


@dataclass(frozen=True, slots=True)
class Archive:
    """The folder for the files. It has to exist: one that is not mounted must not be created."""

    folder: Path

    def check(self) -> None:
        """Raises ArchiveError unless files can be put there. Blocks."""
        is_fit = self.folder.is_dir() and os.access(self.folder, os.W_OK | os.X_OK)
        if not is_fit:
            raise ArchiveError(
                f"retention.archive_dir = '{self.folder}' is not a writable folder here; create "
                f"it, or run the janitor on another machine; until then the months are kept"
            )

    async def write(self, connection: Connection, table: str) -> Manifest:
        """Write the table to a file, in place of one with the same content.

        Raises ArchiveError when a file with other content exists, or the file reads back
        differently, and OSError, such as for a full disk. Then no file is left.
        """
        name = self.folder / f"{table}.jsonl.gz"
        part = self.folder / f".{table}.{uuid4().hex}.part"
        await asyncio.to_thread(self._remove_parts, table)
        try:
            manifest = await _write(_event_lines(connection, table), part, name.name)
            maybe_crash(CrashPoint.ARCHIVE_WRITTEN)
            await _verify(part, manifest)
            await asyncio.to_thread(_keep, part, name, manifest)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
        maybe_crash(CrashPoint.ARCHIVED)
        return manifest

    def _remove_parts(self, table: str) -> None:
        """Remove what killed processes left. One that still runs fails, and begins again."""
        for part in self.folder.glob(f".{table}.*.part"):
            part.unlink(missing_ok=True)


async def _event_lines(
    connection: Connection, table: str
) -> AsyncIterator[Sequence[tuple[str, str]]]:
    """All events of a detached month in the order of their ids, page by page: id and JSON."""
    query = QUERIES["events_after"].renamed(webhook_events=table)
    after = FIRST_ID
    while True:
        rows = await query.rows(connection, after=after, limit=PAGE_EVENTS)
        if rows:
            yield [(str(row["id"]), row["line"]) for row in rows]
            after = rows[-1]["id"]
        if len(rows) < PAGE_EVENTS:
            return


async def _write(
    pages: AsyncIterator[Sequence[tuple[str, str]]], part: Path, name: str
) -> Manifest:
    """Write all pages and sync them to the disk; one page at a time is in memory."""
    content = hashlib.sha256()
    events, first_id, last_id = 0, None, None
    with await asyncio.to_thread(_create, part) as file:
        with gzip.GzipFile("", "wb", COMPRESSION, file, mtime=0) as packed:
            async for page in pages:
                await asyncio.to_thread(_add, page, packed, content)
                first_id, last_id = first_id or page[0][0], page[-1][0]
                events += len(page)
        await asyncio.to_thread(_flush, file)
    size, digest = await _hash_file(part)
    return Manifest(name, events, first_id, last_id, size, digest, content.hexdigest())


def _add(page: Sequence[tuple[str, str]], packed: gzip.GzipFile, content: "_Hash") -> None:
    text = "".join(f"{line}\n" for _, line in page).encode()
    content.update(text)
    packed.write(text)


async def _hash_file(path: Path) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


async def _verify(part: Path, manifest: Manifest) -> None:
    """Raises ArchiveError unless the file reads back as it was written."""
    events, content = 0, hashlib.sha256()
    try:
        with gzip.open(part, "rb") as packed:
            while piece := await asyncio.to_thread(packed.read, READ_BYTES):
                content.update(piece)
                events += piece.count(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise ArchiveError(f"{part} cannot be read back: {type(error).__name__}") from None
    if (events, content.hexdigest()) != (manifest.events, manifest.content_sha256):
        raise ArchiveError(f"{part} reads back differently than it was written")


def _keep(part: Path, name: Path, manifest: Manifest) -> None:
    """Give the file its name, and then its manifest."""
    path = name.with_name(f"{name.name}.manifest.json")
    if path.exists() and _content_of(path) != manifest.content_sha256:
        raise ArchiveError(
            f"{name} has other content for this month; move it and its manifest away"
        )
    part.rename(name)
    _flush_folder(name.parent)
    maybe_crash(CrashPoint.ARCHIVE_NAMED)
    content = asdict(manifest) | {"written_at": CLOCK.now()}
    unnamed = part.with_name(f"{part.name}.manifest.part")
    with _create(unnamed) as file:
        file.write(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        _flush(file)
    unnamed.rename(path)
    _flush_folder(name.parent)


def _content_of(manifest: Path) -> object:
    try:
        return orjson.loads(manifest.read_bytes())["content_sha256"]
    except (ValueError, KeyError, TypeError):
        return None


def _create(part: Path) -> BinaryIO:
    """A new file that only its owner may read."""
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    return os.fdopen(handle, "wb")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """A new name is durable once its folder is synced."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
