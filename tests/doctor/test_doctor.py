"""`paidonce doctor` against good and broken worlds."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg
import orjson
import pytest
import pytest_asyncio

from paidonce.db.pool import Database
from paidonce.db.schema import ensure_partitions, partition_name
from paidonce.doctor import examine
from paidonce.doctor.database import clock_result, money_result
from paidonce.doctor.machine import disk_result
from tests.support.memory_folder import make_memory_folder
from tests.support.postgres import SCHEMA
from tests.support.service import Service, paid
from tests.support.tools import free_port, paidonce, until

HIDDEN: Final = "a-very-hidden-secret"
SOURCE: Final = f'[sources.payments]\nprovider = "tilda"\nsecrets = ["{HIDDEN}"]\n'
PLAN: Final = '[plans.monthly]\nprice = "990.00"\ncurrency = "RUB"\ndays = 30\ndefault = true\n'
CHECKS: Final = {
    "configuration", "sources", "secrets", "pepper", "plans", "notifications", "bus",
    "payouts", "data directory", "disk", "port", "admin port", "database", "clock", "rights",
    "migrations", "partitions", "known sources", "signatures", "waiting", "money", "messages",
}  # fmt: skip
OF_THE_SCHEMA: Final = ("partitions", "known sources", "signatures", "waiting", "money", "messages")


@dataclass(frozen=True)
class Examined:
    """What the doctor said."""

    code: int
    findings: dict[str, dict[str, Any]]

    def state(self, name: str) -> str:
        return str(self.findings[name]["state"])

    def said(self, name: str) -> str:
        return f"{self.findings[name]['found']} {self.findings[name]['remedy']}"

    def not_ok(self) -> set[str]:
        return {name for name in self.findings if self.state(name) in ("warning", "problem")}


@dataclass(frozen=True)
class Clinic:
    """A folder with a configuration, and a doctor who comes to see it."""

    folder: Path
    url: str

    def write(self, config: str = "", url: str | None = None, port: int | None = None) -> None:
        text = f'{config or SOURCE + PLAN}\n[database]\nurl = "{url or self.url}"\n'
        text += f"[server]\nport = {port or free_port()}\n"
        text += f'[security]\npepper = "{HIDDEN}"\n'
        (self.folder / "paidonce.toml").write_text(text, encoding="utf-8")
        (self.folder / "paidonce.toml").chmod(0o600)

    def command(self, *arguments: str, **environment: Any) -> Examined:
        """By the real command, as a program calls it."""
        done = paidonce(self.folder, "doctor", "--json", *arguments, **environment)
        assert "Traceback" not in done.stderr, done.stderr
        examined = self._checked(done.stdout + done.stderr)
        assert done.returncode == examined.code
        return examined

    def examine(self, config: str | None = None) -> Examined:
        """The same without a process of its own, which takes a second to start."""
        with chdir(self.folder), ThreadPoolExecutor(1) as thread:
            path = None if config is None else Path(config)
            found = thread.submit(lambda: asyncio.run(examine(path))).result()
        return self._checked(orjson.dumps(found).decode())

    def _checked(self, text: str) -> Examined:
        assert HIDDEN not in text
        findings = {one["name"]: one for one in json.loads(text)}
        assert findings.keys() == CHECKS
        has_problem = any(one["state"] == "problem" for one in findings.values())
        for one in findings.values():
            assert one["found"]
            assert one["remedy"] or one["state"] not in ("warning", "problem")
        return Examined(int(has_problem), findings)


@pytest_asyncio.fixture(loop_scope="session")
async def clinic(tmp_path: Path, database: Database) -> Clinic:
    """A database that is well, and a configuration that leads to it."""
    async with database.connection() as connection:
        await ensure_partitions(connection, datetime.now(UTC))
    made = Clinic(tmp_path, database.url)
    made.write()
    return made


def test_a_world_that_is_well(clinic: Clinic) -> None:
    """USE-2: and people get a table."""
    examined = clinic.command()
    assert examined.code == 0
    assert examined.not_ok() == set()
    assert "990.00 RUB" in examined.said("plans")
    assert "new at the next start: payments" in examined.said("known sources")
    table = paidonce(clinic.folder, "doctor")
    assert table.returncode == 0
    assert all(name in table.stdout for name in CHECKS)
    assert "what to do" in table.stdout


async def test_looking_changes_nothing(clinic: Clinic, database: Database) -> None:
    """USE-2: neither a row, nor a table, nor a file."""

    async def shape() -> list[Any]:
        async with database.connection() as connection:
            tables = await connection.fetch(
                "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables"
                " ORDER BY relname"
            )
        return [tuple(row) for row in tables]

    before, files = await shape(), sorted(clinic.folder.rglob("*"))
    clinic.examine()
    assert await shape() == before
    assert sorted(clinic.folder.rglob("*")) == files


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[sever]\n", ["sever", "no such setting"]),
        ("[server\n", ["paidonce.toml", "line"]),
        ('[plans.a]\nprice = "1"\ncurrency = "RUB"\n', ["plans.a", "days or months"]),
    ],
    ids=["unknown section", "no TOML", "plan without duration"],
)
def test_a_configuration_that_cannot_be_read(clinic: Clinic, config: str, words: list[str]) -> None:
    """USE-2 USE-3: all else is skipped."""
    (clinic.folder / "paidonce.toml").write_text(SOURCE + config, encoding="utf-8")
    examined = clinic.examine()
    assert examined.not_ok() == {"configuration"}
    assert all(word in examined.said("configuration") for word in words)
    assert {one for one in CHECKS if examined.state(one) == "skipped"} == CHECKS - {"configuration"}


def test_a_configuration_that_is_not_there(clinic: Clinic) -> None:
    """USE-2"""
    examined = clinic.command("--config", "absent.toml")
    assert "absent.toml" in examined.said("configuration")
    assert examined.code == 1


def test_every_source_that_is_wrong_is_named(clinic: Clinic) -> None:
    """USE-2 PRV-7: an empty secret, a variable that is not set, an unknown provider."""
    sources = {"empty": ["tilda", ""], "unset": ["tilda", "env:NOT_SET"], "odd": ["tidla", HIDDEN]}
    text = "".join(
        f'[sources.{name}]\nprovider = "{provider}"\nsecrets = ["{secret}"]\n'
        for name, (provider, secret) in sources.items()
    )
    clinic.write(text + PLAN)
    examined = clinic.examine()
    assert examined.state("sources") == "problem"
    for word in ("sources.empty.secrets[0]", "NOT_SET", "sources.odd.provider", "tidla", "tilda"):
        assert word in examined.said("sources")


def test_no_sources_is_a_problem_where_there_is_a_configuration(clinic: Clinic) -> None:
    """USE-2"""
    clinic.write(PLAN)
    assert clinic.examine().state("sources") == "problem"
    (clinic.folder / "paidonce.toml").rename(clinic.folder / "other.toml")
    assert clinic.examine("other.toml").state("sources") == "problem"


def test_a_secret_of_two_sources_is_a_warning_and_in_production_a_problem(clinic: Clinic) -> None:
    """SEC-10"""
    both = SOURCE + SOURCE.replace("payments", "shop") + PLAN
    for environment, state in (("development", "warning"), ("production", "problem")):
        clinic.write(f'environment = "{environment}"\n{both}')
        examined = clinic.examine()
        assert examined.state("secrets") == state
        assert "sources.payments and sources.shop" in examined.said("secrets")
        assert HIDDEN not in json.dumps(examined.findings)


def test_weak_and_public_secrets_are_warnings(clinic: Clinic) -> None:
    """USE-2 SEC-7: named by their key and file, never told."""
    (clinic.folder / "secret.txt").write_text(HIDDEN)
    (clinic.folder / "secret.txt").chmod(0o644)
    clinic.write(SOURCE.replace(f'"{HIDDEN}"', '"sh-ort", "file:secret.txt"') + PLAN)
    examined = clinic.examine()
    assert examined.code == 0
    assert examined.not_ok() == {"secrets"}
    assert "sources.payments.secrets[0]" in examined.said("secrets")
    assert "chmod o-r secret.txt" in examined.said("secrets")
    assert "sh-ort" not in json.dumps(examined.findings)
    (clinic.folder / "secret.txt").chmod(0o600)
    (clinic.folder / "paidonce.toml").chmod(0o644)
    examined = clinic.examine()
    assert "secret.txt" not in examined.said("secrets")
    assert "chmod o-r" in examined.said("configuration")


def test_keys_without_a_pepper_are_a_warning(clinic: Clinic) -> None:
    """SEC-6 USE-2: an own database has no place where it could be kept by itself."""
    file = clinic.folder / "paidonce.toml"
    file.write_text(file.read_text().partition("[security]")[0])
    examined = clinic.examine()
    assert examined.not_ok() == {"pepper"}
    assert "security.pepper" in examined.said("pepper")
    file.write_text(file.read_text() + '[security]\npepper = "short"\n')
    assert clinic.examine().state("pepper") == "problem"


def test_a_price_that_is_none(clinic: Clinic) -> None:
    """USE-2"""
    clinic.write(SOURCE + PLAN.replace("990.00", "free"))
    examined = clinic.examine()
    assert examined.not_ok() == {"plans"}
    assert "free" in examined.said("plans")


def test_a_channel_that_leads_nowhere(clinic: Clinic) -> None:
    """USE-2 OBS-5"""
    channel = '[notifications.ops]\nkind = "slack"\n'
    clinic.write(SOURCE + PLAN + channel)
    examined = clinic.examine()
    assert examined.not_ok() == {"notifications"}
    assert "notifications.ops.url" in examined.said("notifications")
    clinic.write(f'{SOURCE}{PLAN}{channel}url = "https://{HIDDEN}"\n')
    assert "ops (slack)" in clinic.examine().said("notifications")


def test_a_bus_and_a_gateway_that_are_wrong(clinic: Clinic) -> None:
    """USE-2 BUS-1 SVC-1: what `serve` would refuse, without a start; nothing is connected to."""
    wrong = '[bus]\nurl = "kafka://127.0.0.1:1"\n[bus.kafka]\n"acks" = "1"\n'
    gateway = '[payouts]\ngateway_url = "http://127.0.0.1:1"\nsource = "payments"\n'
    clinic.write(f'{SOURCE}{PLAN}{wrong}{gateway}gateway_key = "env:NO_SUCH_KEY"\n')
    examined = clinic.examine()
    assert examined.not_ok() == {"bus", "payouts"}
    assert "bus.kafka.acks" in examined.said("bus")
    assert "NO_SUCH_KEY" in examined.said("payouts")
    clinic.write(f'{SOURCE}{PLAN}[bus]\nurl = "kafka://127.0.0.1:1"\n{gateway}')
    examined = clinic.examine()
    assert (examined.state("bus"), examined.state("payouts")) == ("ok", "warning")
    assert "top-ups" in examined.said("payouts"), "callbacks fill no wallet"


def test_a_database_that_is_not_there(clinic: Clinic) -> None:
    """USE-2 SEC-7: what depends on it is skipped."""
    clinic.write(url=f"postgresql://me:{HIDDEN}@127.0.0.1:{free_port()}/b")
    examined = clinic.examine()
    assert examined.not_ok() == {"database"}
    assert "start PostgreSQL there" in examined.said("database")
    assert {examined.state(name) for name in ("clock", "rights", *OF_THE_SCHEMA)} == {"skipped"}


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


@pytest.mark.parametrize(
    ("statement", "state", "words"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "problem", ["9999", "newer", "update"]),
        ("DROP TABLE alembic_version", "warning", ["no schema", "paidonce migrate"]),
    ],
    ids=["newer", "none"],
)
async def test_a_schema_of_another_version(
    clinic: Clinic, statement: str, state: str, words: list[str]
) -> None:
    """USE-2 DAT-1: nothing is migrated, and nothing asked of tables that may be others."""
    await execute(clinic.url, statement)
    examined = clinic.examine()
    assert examined.not_ok() == {"migrations"}
    assert examined.state("migrations") == state
    assert all(word in examined.said("migrations") for word in words)
    assert {examined.state(name) for name in OF_THE_SCHEMA} == {"skipped"}


async def test_a_month_that_is_missing(clinic: Clinic) -> None:
    """USE-2 INB-4"""
    now = datetime.now(UTC)
    month = now.year * 12 + now.month
    following = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
    await execute(clinic.url, f"DROP TABLE {partition_name(following)}")
    assert clinic.examine().state("partitions") == "warning"
    await execute(clinic.url, f"DROP TABLE {partition_name(now)}")
    examined = clinic.examine()
    assert examined.state("partitions") == "problem"
    assert partition_name(now) in examined.said("partitions")


async def test_a_source_whose_provider_has_changed(clinic: Clinic) -> None:
    """USE-2"""
    await execute(
        clinic.url,
        "INSERT INTO sources (name, provider) VALUES ('payments', 'stripe'), ('old', 'tilda')",
    )
    examined = clinic.examine()
    assert examined.not_ok() == {"known sources"}
    assert "'stripe'" in examined.said("known sources")
    assert "another name" in examined.said("known sources")


async def test_a_role_without_rights(clinic: Clinic) -> None:
    """USE-2"""
    role = f"poor_{uuid4().hex[:8]}"
    await execute(
        clinic.url,
        f"CREATE ROLE {role} LOGIN",
        f'GRANT SELECT ON ALL TABLES IN SCHEMA "{SCHEMA}" TO {role}',
    )
    try:
        clinic.write(url=clinic.url.replace("paidonce@", f"{role}@"))
        examined = clinic.examine()
        assert examined.not_ok() == {"rights"}
        assert "may not read anything" in examined.said("rights")
        await execute(clinic.url, f'GRANT USAGE ON SCHEMA "{SCHEMA}" TO {role}')
        examined = clinic.examine()
        assert examined.not_ok() == {"rights"}
        assert "GRANT CREATE" in examined.said("rights")
        await execute(clinic.url, f'GRANT CREATE ON SCHEMA "{SCHEMA}" TO {role}')
        assert "does not own" in clinic.examine().said("rights")
    finally:
        await execute(clinic.url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_what_waits_too_long_and_what_is_dead(clinic: Clinic) -> None:
    """USE-2 RET-4"""
    await execute(
        clinic.url,
        "INSERT INTO event_queue (run_at, event_id)"
        " VALUES (now() - interval '9 minutes', gen_random_uuid())",
    )
    assert clinic.examine().state("waiting") == "ok"
    await execute(clinic.url, "UPDATE event_queue SET run_at = now() - interval '30 minutes'")
    examined = clinic.examine()
    assert examined.not_ok() == {"waiting"}
    assert "30 minutes" in examined.said("waiting")
    assert "paidonce work" in examined.said("waiting")


async def test_messages_that_are_not_published_or_not_taken(clinic: Clinic) -> None:
    """USE-2 BUS-1"""
    await execute(
        clinic.url,
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, type, version, payload, occurred_at)"
        " VALUES (gen_random_uuid(), 'thing', gen_random_uuid(), 'Changed', 1, '{}', now())",
    )
    assert clinic.examine().state("messages") == "ok"
    await execute(clinic.url, "UPDATE outbox SET occurred_at = now() - interval '5 minutes'")
    examined = clinic.examine()
    assert examined.not_ok() == {"messages"}
    assert "5 minutes" in examined.said("messages")
    assert "paidonce relay" in examined.said("messages")


def test_money_that_waits_is_a_problem(service: Service, database_url: str) -> None:
    """USE-2 PAY-8 OBS-5; and the port is used by a Paidonce that answers."""
    assert service.deliver(paid("p-1")).http == 200
    assert service.deliver(paid("p-2", email=None)).http == 200
    clinic = Clinic(service.folder, database_url)
    clinic.write(port=service.port)
    examined = clinic.examine()
    assert examined.code == 1
    assert examined.not_ok() == {"money"}
    said = examined.said("money")
    assert "1980.00 RUB in 2 payments (" in said
    assert "USER_MISSING 1" in said
    assert "UNLINKED_PAYMENT 1" in said
    assert "the oldest for 0 min" in said
    assert "paidonce payments list --not-applied" in said
    assert "Paidonce answers" in examined.said("port")


def _unapplied(reason: str, currency: str = "EUR", oldest_s: float = 1.0) -> dict[str, Any]:
    return {
        "reason": reason,
        "currency": currency,
        "number": 2,
        "sum_minor": 100_00,
        "oldest_s": oldest_s,
    }


@pytest.mark.parametrize(
    ("rows", "state", "found"),
    [
        ([], "ok", "all received money is applied"),
        ([_unapplied("")], "ok", "100.00 EUR in 2 payments (new 2)"),
        ([_unapplied("", oldest_s=901)], "problem", "the oldest for 15 min"),
        ([_unapplied("REFUND_WANTED", oldest_s=200_000)], "ok", "the oldest for 2 d 7 h"),
        (
            [_unapplied("USER_MISSING"), _unapplied("ORDER_MISSING"), _unapplied("EXCESS", "KRW")],
            "problem",
            "200.00 EUR in 4 payments (USER_MISSING 2, ORDER_MISSING 2), 10000 KRW in 2 payments",
        ),
    ],
)
def test_money_is_summed_by_currency(rows: list[Any], state: str, found: str) -> None:
    """USE-2 OBS-5: what has just arrived, or is to be refunded, waits for nobody."""
    result = money_result(rows, 900.0)
    assert result.state == state
    assert found in result.found


def test_a_port_that_another_program_uses(clinic: Clinic) -> None:
    """USE-2"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        clinic.write(port=listener.getsockname()[1])
        examined = clinic.examine()
    assert examined.not_ok() == {"port"}
    assert "another program" in examined.said("port")


def test_operators_on_the_port_of_deliveries_are_a_note_in_production(clinic: Clinic) -> None:
    """USE-2 OPS-3: and another program on their own port is a problem."""
    production = {"PAIDONCE_ENVIRONMENT": "production"}
    examined = clinic.command(**production)
    assert examined.state("admin port") == "warning"
    assert "/metrics is open" in examined.said("admin port")
    assert "server.admin_port" in examined.said("admin port")
    with_token = clinic.command(**production, PAIDONCE_SERVER__METRICS_TOKEN="short")
    assert "/metrics is open" not in with_token.said("admin port")
    assert "server.metrics_token" in with_token.said("secrets")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        taken = clinic.command(**production, PAIDONCE_SERVER__ADMIN_PORT=str(port))
    assert taken.state("admin port") == "problem"
    assert "server.admin_port" in taken.said("admin port")


def test_a_host_that_is_not_ours(clinic: Clinic) -> None:
    """USE-2"""
    examined = clinic.command(PAIDONCE_SERVER__HOST="192.0.2.1")
    assert examined.not_ok() == {"port"}
    assert "server.host" in examined.said("port")


@pytest.mark.parametrize(
    ("skew_s", "state"), [(0.2, "ok"), (-1.5, "warning"), (5.5, "problem"), (-3600.0, "problem")]
)
def test_clocks_that_differ(skew_s: float, state: str) -> None:
    """USE-2"""
    assert clock_result(skew_s).state == state
    assert f"{skew_s:+.1f} s" in clock_result(skew_s).found


@pytest.mark.parametrize(
    ("free_mb", "total_gb", "state"),
    [(50_000, 100, "ok"), (9_000, 100, "warning"), (900, 5, "warning"), (199, 1, "problem")],
)
def test_a_disk_that_fills_up(free_mb: int, total_gb: int, state: str) -> None:
    """USE-2"""
    assert disk_result(free_mb * 10**6, total_gb * 10**9, "/data").state == state


# The embedded database


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that the embedded database's own user can reach."""
    made = make_memory_folder("doctor")
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_an_embedded_database_that_does_not_run_is_not_started(folder: Path) -> None:
    """USE-2: nor is anything made."""
    examined = Clinic(folder, "").command()
    assert examined.code == 0
    assert examined.not_ok() == set()
    assert examined.state("database") == "skipped"
    assert "paidonce serve" in examined.said("database")
    assert list(folder.iterdir()) == []


def test_a_data_directory_that_cannot_be_used(folder: Path) -> None:
    """USE-2"""
    (folder / ".paidonce").write_text("a file")
    examined = Clinic(folder, "").examine()
    assert examined.not_ok() == {"data directory"}
    assert "database.data_dir" in examined.said("data directory")


def test_an_embedded_database_that_runs_is_looked_at_and_left_running(folder: Path) -> None:
    """USE-2: whoever started it is still the one who stops it."""
    port = free_port()
    with (folder / "told").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "paidonce", "serve", "--port", str(port)],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if "PAIDONCE" not in name},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    service = Service(folder, process, port)
    try:
        assert until(lambda: "running at" in (folder / "told").read_text(), 60)
        examined = Clinic(folder, "").command(PAIDONCE_SERVER__PORT=str(port))
        assert examined.not_ok() == set()
        assert examined.state("database") == "ok"
        assert service.request("GET", "/readyz").http == 200
    finally:
        assert service.end(signal.SIGTERM) == 0
    examined = Clinic(folder, "").examine()
    assert examined.state("database") == "skipped"
