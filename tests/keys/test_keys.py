"""Operators' keys are kept as hashes, with a pepper where there is one."""

import hashlib
import hmac
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paidonce.core.actors import Scope
from paidonce.db.paging import ListQuery
from paidonce.db.pool import Database
from paidonce.errors import ConfigurationError
from paidonce.keys.pepper import load_pepper
from paidonce.keys.service import KeyService
from paidonce.settings import Settings
from paidonce.settings.sections import DatabaseSettings, SecuritySettings

PEPPER = b"a pepper of some length"


def desk(database: Database, pepper: bytes | None) -> KeyService:
    return KeyService(database, pepper)


async def test_a_key_is_hashed_with_the_pepper_and_worth_nothing_without_it(
    database: Database,
) -> None:
    """SEC-6"""
    made = await desk(database, PEPPER).create("ours", Scope.OPERATE)
    async with database.connection() as connection:
        row = await connection.fetchrow("SELECT * FROM api_keys")
    assert row is not None
    assert row["hash"] == hmac.new(PEPPER, made.key.encode(), hashlib.sha256).digest()
    assert row["hash_method"] == "hmac-sha256"
    found = await desk(database, PEPPER).authenticate(made.key)
    assert found is not None
    assert (found.name, found.scope) == ("ours", Scope.OPERATE)
    assert await desk(database, None).authenticate(made.key) is None
    assert await desk(database, b"another pepper, just as long").authenticate(made.key) is None


async def test_a_key_from_before_the_pepper_stays_valid_and_is_not_made_twice(
    database: Database,
) -> None:
    """SEC-6"""
    made = await desk(database, None).create("old", Scope.READ)
    peppered = desk(database, PEPPER)
    assert await peppered.authenticate(made.key) is not None
    await peppered.ensure(made.key, "again", Scope.ADMIN)
    assert [key.name for key in (await peppered.search(ListQuery(limit=10))).items] == ["old"]
    await peppered.revoke(made.id)
    await peppered.ensure(made.key, "again", Scope.ADMIN)
    assert await peppered.authenticate(made.key) is None, "revoked is revoked"


async def test_who_writes_a_plain_hash_where_a_peppered_one_belongs_gets_in_by_neither(
    database: Database,
) -> None:
    """SEC-6: how a key is hashed is a part of what is compared."""
    key = "po_smuggled-into-the-database"
    digest = hashlib.sha256(key.encode()).digest()
    async with database.connection() as connection:
        await connection.execute(
            "INSERT INTO api_keys (id, name, hint, hash, hash_method, scope)"
            " VALUES (gen_random_uuid(), 'x', 'po_', $1, 'hmac-sha256', 'admin')",
            digest,
        )
    assert await desk(database, PEPPER).authenticate(key) is None
    assert await desk(database, None).authenticate(key) is None


def _settings(folder: Path, pepper: str | None = None, url: str = "embedded") -> Settings:
    return Settings(
        database=DatabaseSettings(url=url, data_dir=folder),
        security=SecuritySettings(pepper=pepper),
    )


def test_beside_the_embedded_database_a_pepper_is_made_once(tmp_path: Path) -> None:
    """SEC-6: however many processes start at once."""
    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(lambda _: load_pepper(_settings(tmp_path)), range(32)))
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pepper"]
    assert (tmp_path / "pepper").stat().st_mode & 0o777 == 0o600
    assert load_pepper(_settings(tmp_path)) in made
    (pepper,) = made
    assert pepper is not None
    assert len(pepper) >= 32


def test_a_pepper_is_what_is_set_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-6 USE-3"""
    monkeypatch.setitem(os.environ, "SOME_PEPPER", PEPPER.decode())
    assert load_pepper(_settings(tmp_path, "env:SOME_PEPPER")) == PEPPER
    assert load_pepper(_settings(tmp_path, None, "postgresql://somewhere/else")) is None
    for wrong in ("", "short", "env:NO_SUCH_PEPPER"):
        with pytest.raises(ConfigurationError, match=r"security\.pepper"):
            load_pepper(_settings(tmp_path, wrong))
    assert list(tmp_path.iterdir()) == []
