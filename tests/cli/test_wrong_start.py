"""What `paidonce serve` says of a database, an address or a plan with which it cannot start."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest_asyncio

from tests.support.postgres import TEMPLATE
from tests.support.tools import free_port, start_in_each

HIDDEN: Final = "a-very-hidden-secret"
SOURCE: Final = f'[sources.payments]\nprovider = "tilda"\nsecrets = ["{HIDDEN}"]\n'
PLAN: Final = '[plans.a]\nprice = {}\ncurrency = "{}"\ndays = 1\n'
POOR: Final = "paidonce_poor"


def database(url: str) -> str:
    return f'{SOURCE}[database]\nurl = "{url}"\n'


def wrong_starts(url: str) -> dict[str, tuple[str, list[str]]]:
    """By name: the configuration, and the words that must be told: key, value, remedy."""
    here = database(url)
    at = f"postgresql://me:{HIDDEN}@"
    return {
        "url with a slash in its password": (
            database(f"postgresql://me:{HIDDEN}/x@127.0.0.1:1/b"), ["database.url", "%2F"]),
        "url with a word as port": (
            database(f"{at}127.0.0.1:abc/b"), ["database.url", "host:5432"]),
        "url where nobody listens": (
            database(f"{at}127.0.0.1:{free_port()}/b"), ["database.url", "start PostgreSQL there"]),
        "role unknown": (
            database(url.replace("paidonce@", f"nobody_here:{HIDDEN}@")),
            ["database.url", "nobody_here", "correct user or password"]),
        "no such database": (
            database(url.replace("/wrong_", "/no_such_")),
            ["database.url", "no_such_", "createdb"]),
        "no rights": (
            database(url.replace("paidonce@", f"{POOR}@")),
            ["database.url", POOR, "permission denied", "GRANT"]),
        "tables of somebody else": (
            database(url.replace("/wrong_", "/changed_").replace("paidonce@", f"{POOR}@")),
            ["database.url", POOR, "permission denied", "owner of the tables"]),
        "newer schema": (
            database(url.replace("/wrong_", "/newer_")), ["9999", "newer", "update"]),
        "provider of the source has changed": (
            database(url.replace("/wrong_", "/changed_")),
            ["sources.payments.provider", "tilda", "stripe", "another name"]),
        "host that is not ours": (
            f'{here}[server]\nhost = "192.0.2.1"\n', ["server.host", "192.0.2.1", "127.0.0.1"]),
        "host that is no address": (
            f'{here}[server]\nhost = "a..b"\n', ["server.host", "a..b", "127.0.0.1"]),
        "host that is empty": (f'{here}[server]\nhost = ""\n', ["server.host", "''"]),
        "proxies": (
            f'{here}[server]\ntrusted_proxies = ["10.0.0.0/99"]\n',
            ["server.trusted_proxies", "10.0.0.0/99", "10.0.0.0/8"]),
        "allowed networks": (
            f'{SOURCE}allow = ["10.0.0.0/99"]\n{here.removeprefix(SOURCE)}',
            ["sources.payments.allow", "10.0.0.0/99", "10.0.0.0/8"]),
        "price without quotes": (
            here + PLAN.format("990.5", "RUB"), ["plans.a.price", "990.5", "in quotes"]),
        "price below nothing": (
            here + PLAN.format('"-1"', "RUB"), ["plans.a.price", "'-1'", "negative"]),
        "price too fine": (here + PLAN.format('"1.005"', "RUB"), ["plans.a.price", "1.005"]),
        "currency": (here + PLAN.format('"1"', "RUBLES"), ["plans.a", "RUBLES", "ISO 4217"]),
        "data_dir is a file": (
            f'{SOURCE}[database]\ndata_dir = "paidonce.toml"\n', ["paidonce.toml", "Remedy"]),
        "data_dir in a file": (
            f'{SOURCE}[database]\ndata_dir = "paidonce.toml/x"\n', ["paidonce.toml", "Remedy"]),
    }  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def wrong_url(postgres: str) -> AsyncIterator[str]:
    """A database without a schema, beside one whose schema is newer and one of another provider."""
    admin = await asyncpg.connect(postgres)
    await admin.execute(f"CREATE ROLE {POOR} LOGIN")
    await admin.execute("CREATE DATABASE wrong_start TEMPLATE template0")
    for name in ("newer_start", "changed_start"):
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    for name, sql in (
        ("newer_start", "UPDATE alembic_version SET version_num = '9999'"),
        ("changed_start", "INSERT INTO sources (name, provider) VALUES ('payments', 'stripe')"),
    ):
        connection = await asyncpg.connect(postgres.replace("/paidonce?", f"/{name}?"))
        await connection.execute(sql)
        await connection.close()
    yield postgres.replace("/paidonce?", "/wrong_start?")
    for name in ("wrong_start", "newer_start", "changed_start"):
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.execute(f"DROP ROLE {POOR}")
    await admin.close()


def test_a_start_that_fails_names_key_value_and_remedy_and_no_secret(
    tmp_path: Path, wrong_url: str
) -> None:
    """USE-3 SEC-7: never a traceback."""
    starts = wrong_starts(wrong_url)
    for name, (config, _) in starts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "paidonce.toml").write_text(config, encoding="utf-8")
    done = start_in_each(tmp_path)
    assert done.keys() == starts.keys()
    wrong = []
    for name, (code, told) in done.items():
        missing = [word for word in starts[name][1] if word not in told]
        if code <= 0 or missing or HIDDEN in told or "Traceback" in told:
            wrong.append((name, code, missing, told[-600:]))
    assert wrong == []
