"""Programs that hold Paidonce, run by uvicorn as processes of their own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.service import KEY, START_TIMEOUT_S, Service

StartHost = Callable[..., Service]
RUNNING: Final = re.compile(r"running on http://127\.0\.0\.1:(\d+)")


@pytest.fixture
def start_host(database_url: str, tmp_path: Path) -> Iterator[StartHost]:
    """Starts `uvicorn module:app` on this test's database, and ends it."""
    hosts: list[Service] = []

    def start(app: str, folder: Path, **environment: str) -> Service:
        place = tmp_path / f"host-{len(hosts)}"
        place.mkdir()
        hosts.append(_started(app, folder, place, database_url, environment))
        return hosts[-1]

    yield start
    for host in hosts:
        host.end()


def stop(host: Service) -> None:
    """End it as a person would, and see that it took its time to end well."""
    host.end()
    assert "Application shutdown complete" in (host.folder / "stderr").read_text(encoding="utf-8")


def _started(
    app: str, folder: Path, place: Path, database_url: str, environment: dict[str, str]
) -> Service:
    variables = {
        **os.environ,
        "PAIDONCE_DATABASE__URL": database_url,
        "PAIDONCE_BOOTSTRAP_KEY": KEY,
        **environment,
    }
    command = [sys.executable, "-m", "uvicorn", app, "--port", "0", "--app-dir", str(folder)]
    with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=out, stderr=err)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    is_alive = True
    while time.monotonic() < deadline_s and is_alive:
        is_alive = process.poll() is None  # one that was told to die soon may be dead already
        found = RUNNING.search((place / "stderr").read_text(encoding="utf-8"))
        if found:
            return Service(place, process, int(found[1]))
        time.sleep(0.05)
    process.kill()
    told = (place / "stderr").read_text(encoding="utf-8")
    raise AssertionError(f"the host did not start:\n{told}")
