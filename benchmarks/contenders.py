"""Paidonce and its peers: how each is prepared, started and counted."""

import asyncio
import sys
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from benchmarks.contender import (
    ROOT,
    BenchmarkError,
    Contender,
    HttpServer,
    Load,
    free_port,
    http_server,
    stop,
)
from benchmarks.databases import count_in, execute_in
from benchmarks.load import HOST
from benchmarks.workload import CURRENCY, PLAN_DAYS, PLAN_ID, PRICE, SECRET

PREPARATION_TIMEOUT_S = 600.0
PREPARATION_CONNECTIONS = 64
MIGRATION_TIMEOUT_S = 120.0
# The same addresses as workload.email_of.
USER_EMAILS = "SELECT format('user%s@example.com', lpad(n::text, 6, '0')) AS email FROM "


def emails_of(users: int) -> str:
    """A query for the addresses of all users."""
    return f"{USER_EMAILS} generate_series(0, {users - 1}) AS n"


class HttpContender(Contender):
    """A contender that is a web server; its database is filled through its own webhook."""

    applied_query: str

    async def prepare(self, url: str, *, users: int, work_dir: Path) -> None:
        """Make the schema and the users, then send the first payment of each user."""
        await self.create_schema(url, work_dir)
        await execute_in(url, self.users_statement(users))
        async with self.running(url, work_dir=work_dir) as server:
            result = await server.drive(
                Load(PREPARATION_CONNECTIONS, users, 0.0, PREPARATION_TIMEOUT_S, None), None
            )
        applied = await self.count_applied(url)
        if applied != users:
            raise BenchmarkError(f"{self.name}: {applied} of {users} applied: {result.answers}")
        await execute_in(url, "VACUUM (ANALYZE)")

    async def count_applied(self, url: str) -> int:
        """Count in the database."""
        return await count_in(url, self.applied_query)

    @abstractmethod
    async def create_schema(self, url: str, work_dir: Path) -> None:
        """Make the tables."""

    @abstractmethod
    def users_statement(self, users: int) -> str:
        """The statement that creates this many users."""


class Peer(HttpContender):
    """The hand-written reference handler, in benchmarks/peer."""

    name = "peer"
    title = "FastAPI + SQLAlchemy"
    template = "bench_peer"
    module = "benchmarks.peer"
    applied_query = "SELECT count(*) FROM payments WHERE subscription_applied_at IS NOT NULL"

    async def create_schema(self, url: str, work_dir: Path) -> None:
        """Start and stop the server, which creates the tables."""
        async with self.running(url, work_dir=work_dir):
            pass  # It makes its tables when it starts.

    def users_statement(self, users: int) -> str:
        """The reference table."""
        return f"INSERT INTO users (email) {emails_of(users)}"

    def running(self, url: str, *, work_dir: Path) -> AbstractAsyncContextManager[HttpServer]:
        """One uvicorn process."""
        port = free_port()
        options = [f"--url={url}", f"--port={port}", f"--secret={SECRET}"]
        return http_server(
            [sys.executable, "-m", self.module, *options],
            port=port,
            path="/webhooks/payments",
            log=work_dir / self.log_name,
        )


class TunedPeer(Peer):
    """The same tables and application with a faster handler, in benchmarks/tuned_peer."""

    name = "tuned_peer"
    title = "the same, tuned (Core, statements built once)"
    module = "benchmarks.tuned_peer"


class Paidonce(HttpContender):
    """Paidonce itself, as `paidonce serve` runs it."""

    name = "paidonce"
    title = "Paidonce"
    template = "bench_paidonce"
    applied_query = "SELECT count(*) FROM paidonce.payments WHERE applied_at IS NOT NULL"
    program = str(Path(sys.executable).with_name("paidonce"))
    mode = "inline"
    options: Sequence[str] = ()

    async def create_schema(self, url: str, work_dir: Path) -> None:
        """Run `paidonce migrate`."""
        config = self.write_config(url, work_dir, port=free_port())
        migration = await asyncio.create_subprocess_exec(
            self.program, "migrate", f"--config={config}", cwd=ROOT
        )
        try:
            code = await asyncio.wait_for(migration.wait(), MIGRATION_TIMEOUT_S)
        finally:
            await stop(migration)
        if code != 0:
            raise BenchmarkError(f"paidonce migrate ended with {code}; see above")

    def users_statement(self, users: int) -> str:
        """Addresses that are already in normal form."""
        return f"""
            WITH new AS (
                INSERT INTO paidonce.users (id, email)
                SELECT gen_random_uuid(), email FROM ({emails_of(users)}) AS given
                RETURNING id, email
            )
            INSERT INTO paidonce.user_emails (email_key, email, user_id, is_current)
            SELECT email, email, id, true FROM new
        """

    def running(self, url: str, *, work_dir: Path) -> AbstractAsyncContextManager[HttpServer]:
        """One `paidonce serve` process with all its roles."""
        return self.serving(url, work_dir=work_dir)

    def serving(
        self, url: str, *, work_dir: Path, settings: str = ""
    ) -> AbstractAsyncContextManager[HttpServer]:
        """The same, with further sections of its configuration."""
        port = free_port()
        config = self.write_config(url, work_dir, port=port, settings=settings)
        return http_server(
            [self.program, "serve", f"--config={config}", f"--port={port}", *self.options],
            port=port,
            path="/webhooks/bench",
            log=work_dir / self.log_name,
        )

    def write_config(self, url: str, work_dir: Path, *, port: int, settings: str = "") -> Path:
        """Write a configuration with one source, the plan of the events, and the given sections."""
        config = work_dir / "paidonce.toml"
        config.write_text(f"""\
environment = "development"
[database]
url = "{url}"
[server]
host = "{HOST}"
port = {port}
mode = "{self.mode}"
[sources.bench]
provider = "tilda"
secrets = ["{SECRET}"]
[plans.{PLAN_ID}]
price = "{PRICE}"
currency = "{CURRENCY}"
days = {PLAN_DAYS}
default = true
{settings}""")
        return config


class TwoProcesses(Paidonce):
    """The same with two processes on one port."""

    name = "paidonce_2"
    title = "Paidonce, 2 processes"
    options = ("--processes=2",)
