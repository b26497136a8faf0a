"""PgBouncer, where it is installed: a real process before the tests' PostgreSQL."""

import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import asyncpg
import pytest

from tests.support.memory_folder import make_memory_folder
from tests.support.postgres import in_database
from tests.support.tools import free_port, until

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")


@asynccontextmanager
async def pooled_database(postgres: str) -> AsyncIterator[str]:
    """The URL of an empty database, whose owner every process may be that reaches the socket."""
    name = f"pooled_{uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres)
    await admin.execute(f"CREATE ROLE {name} LOGIN")
    await admin.execute(f"CREATE DATABASE {name} OWNER {name} TEMPLATE template0")
    access = Path(await admin.fetchval("SHOW hba_file"))
    before = access.read_text(encoding="utf-8")
    try:
        access.write_text(f"local {name} {name} trust\n{before}", encoding="utf-8")
        await admin.execute("SELECT pg_reload_conf()")
        yield in_database(postgres, name).replace("paidonce@", f"{name}@")
    finally:
        access.write_text(before, encoding="utf-8")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.execute(f"DROP ROLE {name}")
        await admin.close()


@contextmanager
def running_pgbouncer(url: str, pool_mode: str, **settings: str) -> Iterator[str]:
    """The URL of a pooled database through PgBouncer, with its default settings but these."""
    parts, port = urlsplit(url), free_port()
    (host,), name = parse_qs(parts.query)["host"], parts.path.removeprefix("/")
    folder = make_memory_folder("pgbouncer")
    folder.chmod(0o755)
    (folder / "users").write_text(f'"{name}" ""\n')
    own = "".join(f"{key} = {value}\n" for key, value in settings.items())
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n{name} = host={host}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {folder}/users\npool_mode = {pool_mode}\n{own}"
    )
    process = _started(folder, Path(host))
    try:
        assert until(lambda: _listens(port) or process.poll() is not None, 30)
        assert process.poll() is None, (folder / "log").read_text()
        yield f"postgresql://{name}@127.0.0.1:{port}/{name}"
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder)


def _started(folder: Path, sockets: Path) -> "subprocess.Popen[bytes]":
    """As the server's user: PgBouncer refuses to run as root, and the socket is that user's."""
    assert PROGRAM is not None
    user: Any = {"user": sockets.stat().st_uid} if os.geteuid() == 0 else {}
    command = [PROGRAM, str(folder / "pgbouncer.ini")]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **user)


def _listens(port: int) -> bool:
    with socket.socket() as client, suppress(OSError):
        client.connect(("127.0.0.1", port))
        return True
    return False
