"""Old months of events as files: gzipped JSON Lines, each with a manifest beside it (INB-4).

A month is written under a name of its own, read back from the disk and compared, then named, then
given its manifest; only after that its table goes. A file without a manifest is not finished:
whoever is killed leaves one, or one without a name, and the next run begins again. The files hold
payment data and are for their owner alone.
"""

import asyncio
import gzip
import hashlib
import os
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from uuid import uuid4

import orjson

from paidonce.crashpoints import Point, passing
from paidonce.errors import ArchiveError
from paidonce.store.months import event_lines
from paidonce.store.queries import Connection

if TYPE_CHECKING:
    from hashlib import _Hash

COMPRESSION: Final = 6
READ_BYTES: Final = 1024 * 1024
OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, slots=True)
class Written:
    """What a file holds: the manifest, as it stands beside it."""

    file: str
    events: int
    first_id: str | None
    last_id: str | None
    bytes: int
    sha256: str  # of the file
    content_sha256: str  # of what is in it, uncompressed


@dataclass(frozen=True, slots=True)
class Archive:
    """A folder for the files. It has to be there: a folder that is not mounted is not made anew."""

    folder: Path

    async def check(self) -> None:
        """Raises ArchiveError unless files can be put there."""
        await asyncio.to_thread(self._check)

    async def write(self, connection: Connection, table: str) -> Written:
        """Write the table to a file, in place of one with the same content.

        Raises ArchiveError when one with other content is there, or what was written reads back
        differently, and OSError, such as for a full disk. Nothing is left behind then.
        """
        name = self.folder / f"{table}.jsonl.gz"
        part = self.folder / f".{table}.{uuid4().hex}.part"
        await asyncio.to_thread(self._throw_away_parts, table)
        try:
            written = await _written(event_lines(connection, table), part, name.name)
            passing(Point.ARCHIVE_WRITTEN)
            await _compare(part, written)
            await asyncio.to_thread(_keep, part, name, written)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
        passing(Point.ARCHIVED)
        return written

    def _throw_away_parts(self, table: str) -> None:
        """What killed processes have left. One that is not dead then fails, and begins again."""
        for part in self.folder.glob(f".{table}.*.part"):
            part.unlink(missing_ok=True)

    def _check(self) -> None:
        is_fit = self.folder.is_dir() and os.access(self.folder, os.W_OK | os.X_OK)
        if not is_fit:
            raise ArchiveError(
                f"retention.archive_dir = '{self.folder}': is no folder that can be written to "
                f"here; make it, or run the janitor elsewhere; the months are kept meanwhile"
            )


async def _written(
    pages: AsyncIterator[Sequence[tuple[str, str]]], part: Path, name: str
) -> Written:
    """Write all pages, so that they are on the disk; a page at a time is in memory."""
    content = hashlib.sha256()
    events, first_id, last_id = 0, None, None
    with await asyncio.to_thread(_opened, part) as file:
        with gzip.GzipFile("", "wb", COMPRESSION, file, mtime=0) as packed:
            async for page in pages:
                await asyncio.to_thread(_add, page, packed, content)
                first_id, last_id = first_id or page[0][0], page[-1][0]
                events += len(page)
        await asyncio.to_thread(_flush, file)
    size, digest = await _hashed(part)
    return Written(name, events, first_id, last_id, size, digest, content.hexdigest())


def _add(page: Sequence[tuple[str, str]], packed: gzip.GzipFile, content: "_Hash") -> None:
    text = "".join(f"{line}\n" for _, line in page).encode()
    content.update(text)
    packed.write(text)


async def _hashed(path: Path) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


async def _compare(part: Path, written: Written) -> None:
    """Raises ArchiveError unless the file, read back, holds what was written to it."""
    events, content = 0, hashlib.sha256()
    try:
        with gzip.open(part, "rb") as packed:
            while piece := await asyncio.to_thread(packed.read, READ_BYTES):
                content.update(piece)
                events += piece.count(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise ArchiveError(f"{part} cannot be read back: {type(error).__name__}") from None
    if (events, content.hexdigest()) != (written.events, written.content_sha256):
        raise ArchiveError(f"{part} reads back differently than it was written")


def _keep(part: Path, name: Path, written: Written) -> None:
    """Give the file its name, and then its manifest."""
    manifest = name.with_name(f"{name.name}.manifest.json")
    if manifest.exists() and _content_of(manifest) != written.content_sha256:
        raise ArchiveError(
            f"{name} holds this month with other content; move it and its manifest away"
        )
    part.rename(name)
    _flush_folder(name.parent)
    passing(Point.ARCHIVE_NAMED)
    said = asdict(written) | {"written_at": datetime.now(UTC)}
    unnamed = part.with_name(f"{part.name}.manifest.part")
    with _opened(unnamed) as file:
        file.write(orjson.dumps(said, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        _flush(file)
    unnamed.rename(manifest)
    _flush_folder(name.parent)


def _content_of(manifest: Path) -> object:
    try:
        return orjson.loads(manifest.read_bytes())["content_sha256"]
    except (ValueError, KeyError, TypeError):
        return None


def _opened(part: Path) -> BinaryIO:
    """A new file, for its owner alone."""
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    return os.fdopen(handle, "wb")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """A name is safe when its folder is on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
