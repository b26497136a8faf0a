"""A month that is archived is in a file, whole, before its table goes."""

import asyncio
import base64
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
import structlog

from paidonce.db.search import first_id_at
from paidonce.maintenance import archive, partitions
from paidonce.maintenance.archive import Archive
from paidonce.maintenance.janitor import Janitor, usual_tasks
from paidonce.maintenance.partitions import OldPartitions
from paidonce.runtime.crashpoints import CrashPoint
from paidonce.runtime.leader import Leader
from paidonce.settings.sections import RetentionSettings
from tests.maintenance.test_retention import NOW, House, house

__all__ = ["house"]

JANUARY: Final = datetime(2025, 1, 5, tzinfo=UTC)
TABLE: Final = "webhook_events_2025_01"
FILE: Final = f"{TABLE}.jsonl.gz"
BODY: Final = bytes(range(256))


async def fill(house: House, number: int = 3) -> list[UUID]:
    """Events of January, with whatever columns can hold."""
    ids = [UUID(int=first_id_at(JANUARY).int + n) for n in range(1, number + 1)]
    await house.run(
        "INSERT INTO webhook_events (id, source_id, status, key, signature_valid, signature_method,"
        " is_test, attempts, received_at, processed_at, request_id, headers, raw_body)"
        " SELECT id, 1, 'PROCESSED', E'k\\n\"\\\\ \U0001f4b0', true, 'none', false, 1, $2, $2, 'r',"
        ' \'{"a": "b"}\', $3 FROM unnest($1::uuid[]) AS id',
        ids,
        JANUARY,
        BODY,
    )
    return ids


def archives(folder: Path) -> OldPartitions:
    return OldPartitions(400, is_dropped=False, archive=Archive(folder))


async def archive_all(house: House, folder: Path) -> None:
    while await house.once(archives(folder)):
        pass


def lines(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / FILE, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def manifest(folder: Path) -> dict[str, Any]:
    text = (folder / f"{FILE}.manifest.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def refusal(told: Sequence[Mapping[str, Any]]) -> str:
    """Why January was not archived."""
    return next(str(line["detail"]) for line in told if line["event"] == "partition_not_archived")


async def assert_archived(house: House, folder: Path, ids: list[UUID]) -> None:
    """The file is whole, its manifest says so, nothing else is left, and the month is gone."""
    assert [UUID(one["id"]) for one in lines(folder)] == ids
    said, packed = manifest(folder), (folder / FILE).read_bytes()
    assert (said["file"], said["events"]) == (FILE, len(ids))
    assert (said["bytes"], said["sha256"]) == (len(packed), hashlib.sha256(packed).hexdigest())
    content = hashlib.sha256(gzip.decompress(packed)).hexdigest()
    assert said["content_sha256"] == content
    assert [one.name for one in folder.iterdir() if one.name.startswith(".")] == []
    assert "2025_01" not in await house.months() + await house.tables()


async def test_a_month_is_archived_whole_and_then_dropped(house: House, tmp_path: Path) -> None:
    """INB-4 DAT-3 SEC-7: all columns, the raw bytes exactly; for the owner's eyes alone."""
    ids = await fill(house)
    stored = "SELECT (to_jsonb(e) - 'raw_body')::text FROM webhook_events AS e ORDER BY id"
    rows = [json.loads(one) for one in await house.rows(stored)]
    await archive_all(house, tmp_path)
    await assert_archived(house, tmp_path, ids)
    found = lines(tmp_path)
    bodies = {base64.b64decode(one.pop("raw_body")) for one in found}
    assert bodies == {BODY}
    assert found == rows
    assert (manifest(tmp_path)["first_id"], manifest(tmp_path)["last_id"]) == (
        str(ids[0]), str(ids[-1]),
    )  # fmt: skip
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}
    assert sorted(one.name for one in tmp_path.iterdir() if one.suffix == ".gz") == [
        f"webhook_events_2025_0{month}.jsonl.gz" for month in (1, 2, 3)
    ]
    assert manifest(tmp_path)["events"] == 3


async def test_an_archive_can_be_read_back_into_a_table(house: House, tmp_path: Path) -> None:
    """INB-4: as the reference says."""
    await fill(house)
    before = await house.rows("SELECT e::text FROM webhook_events AS e ORDER BY id")
    await archive_all(house, tmp_path)
    await house.run("CREATE TABLE restored (LIKE webhook_events)")
    for line in lines(tmp_path):
        await house.run(
            "INSERT INTO restored SELECT (jsonb_populate_record(NULL::restored, line ||"
            " jsonb_build_object('raw_body', decode(line ->> 'raw_body', 'base64')))).*"
            " FROM (SELECT $1::jsonb AS line) AS read",
            json.dumps(line),
        )
    assert await house.rows("SELECT e::text FROM restored AS e ORDER BY id") == before


async def test_more_events_than_a_page_are_all_there(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INB-4 SEC-8: a page at a time is in memory."""
    monkeypatch.setattr(archive, "PAGE_EVENTS", 7)
    monkeypatch.setattr(archive, "READ_BYTES", 100)
    ids = await fill(house, 35)
    await archive_all(house, tmp_path)
    await assert_archived(house, tmp_path, ids)


async def test_a_run_archives_one_month_and_says_that_there_are_more(
    house: House, tmp_path: Path
) -> None:
    """DAT-3"""
    runs = 1
    while await house.once(archives(tmp_path)):
        runs += 1
    assert runs == 3
    assert len(list(tmp_path.glob("*.gz"))) == 3


@pytest.mark.parametrize("place", ["no folder", "a file"])
async def test_without_a_place_the_months_stay_where_they_are(
    house: House, tmp_path: Path, place: str
) -> None:
    """INB-4: and an operator is told why."""
    await fill(house)
    folder = tmp_path / "archive"
    if place == "a file":
        folder.touch()
    before = await house.months()
    settings = RetentionSettings(partition_action="archive", archive_dir=folder)
    with structlog.testing.capture_logs() as told:
        await Janitor(usual_tasks(settings), Leader(house.database)).run_once(NOW)
    assert await house.months() == before
    (line,) = [one for one in told if one["event"] == "service_interrupted"]
    assert "archive_dir" in line["error"]


async def test_what_reads_back_differently_is_not_dropped(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INB-4: a disk that lies loses nothing."""
    ids = await fill(house)

    async def spoiled(pages: Any, part: Path, name: str) -> Any:
        written = await write(pages, part, name)
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)
        return written

    write = archive._write
    with monkeypatch.context() as patch:
        patch.setattr(archive, "_write", spoiled)
        with structlog.testing.capture_logs() as told:
            await house.once(archives(tmp_path))
    assert "reads back" in refusal(told) or "cannot be read" in refusal(told)
    assert list(tmp_path.iterdir()) == []
    assert await house.rows(f"SELECT count(*) FROM {TABLE}") == [3]
    await archive_all(house, tmp_path)
    await assert_archived(house, tmp_path, ids)


async def test_another_archive_of_the_month_is_never_overwritten(
    house: House, tmp_path: Path
) -> None:
    """INB-4: such as that of another database."""
    ids = await fill(house)
    (tmp_path / FILE).write_bytes(b"somebody else's")
    (tmp_path / f"{FILE}.manifest.json").write_text('{"content_sha256": "other"}')
    with structlog.testing.capture_logs() as told:
        await archive_all(house, tmp_path)
    assert "other content" in refusal(told)
    assert (tmp_path / FILE).read_bytes() == b"somebody else's"
    assert await house.rows(f"SELECT id FROM {TABLE} ORDER BY id") == ids
    assert await house.tables() == ["2025_01"], "it holds up no other"


async def test_a_month_whose_event_waits_again_is_put_back(house: House, tmp_path: Path) -> None:
    """INB-4"""
    (event_id, *_) = await fill(house)
    async with house.database.connection() as connection:
        month = datetime(2025, 1, 1, tzinfo=UTC)
        await partitions.detach(connection, month, mark=partitions.ARCHIVE_MARK)
    await house.run("INSERT INTO event_queue (run_at, event_id) VALUES (now(), $1)", event_id)
    await archive_all(house, tmp_path)
    assert "2025_01" in await house.months()
    assert not (tmp_path / FILE).exists()


async def test_a_janitor_that_only_drops_does_not_drop_what_is_to_be_archived(
    house: House, tmp_path: Path
) -> None:
    """INB-4: the settings of another machine may differ for a while."""
    ids = await fill(house)
    async with house.database.connection() as connection:
        month = datetime(2025, 1, 1, tzinfo=UTC)
        await partitions.detach(connection, month, mark=partitions.ARCHIVE_MARK)
    await house.once(OldPartitions(400, is_dropped=True))
    assert await house.tables() == ["2025_01"]
    await archive_all(house, tmp_path)
    await assert_archived(house, tmp_path, ids)


SCRIPT: Final = """
import asyncio, sys
from datetime import datetime
from pathlib import Path
from paidonce.db.pool import open_database
from paidonce.maintenance.janitor import Janitor, usual_tasks
from paidonce.runtime.crashpoints import arm
from paidonce.runtime.leader import Leader
from paidonce.settings.sections import RetentionSettings
from tests.support.postgres import SCHEMA

async def main(url, folder, now):
    arm("development")
    database = await open_database(url, SCHEMA)
    retention = RetentionSettings(partition_action="archive", archive_dir=Path(folder))
    await Janitor(usual_tasks(retention), Leader(database)).run_once(datetime.fromisoformat(now))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "point", [CrashPoint.ARCHIVE_WRITTEN, CrashPoint.ARCHIVE_NAMED, CrashPoint.ARCHIVED]
)
async def test_killed_at_any_point_nothing_is_lost(
    house: House, tmp_path: Path, point: CrashPoint
) -> None:
    """INB-4 REL-1: the next run begins again, and ends."""
    ids = await fill(house)
    command = [sys.executable, "-c", SCRIPT, house.database.url, str(tmp_path), NOW.isoformat()]
    done = await asyncio.to_thread(
        subprocess.run, command, env={**os.environ, "PAIDONCE_CRASH_AT": f"{point}:1"}, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert await house.rows(f"SELECT id FROM {TABLE} ORDER BY id") == ids
    await archive_all(house, tmp_path)
    await assert_archived(house, tmp_path, ids)


async def test_several_janitors_archive_each_month_once(house: House, tmp_path: Path) -> None:
    """INB-4 DAT-3"""
    ids = await fill(house, 50)
    settings = RetentionSettings(partition_action="archive", archive_dir=tmp_path)
    janitors = [Janitor(usual_tasks(settings), Leader(house.database)) for _ in range(3)]
    with structlog.testing.capture_logs() as told:
        for _ in range(4):
            await asyncio.gather(*(one.run_once(NOW) for one in janitors))
    await assert_archived(house, tmp_path, ids)
    assert await house.tables() == []
    archived = [line["name"] for line in told if line["event"] == "partition_archived"]
    assert sorted(archived) == [f"webhook_events_2025_0{month}" for month in (1, 2, 3)]
    assert [line for line in told if line["log_level"] != "info"] == []
