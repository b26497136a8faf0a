"""`paidonce serve` without a configuration: a demo on an embedded database."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.memory_folder import make_memory_folder
from tests.support.service import Service


@contextmanager
def demo_folder() -> Iterator[Path]:
    """An empty folder that the embedded database's own user can reach."""
    made = make_memory_folder("demo")
    made.chmod(0o755)
    yield made
    for pid in databases(made):
        os.kill(pid, signal.SIGINT)
    shutil.rmtree(made, ignore_errors=True)


def databases(folder: Path) -> list[int]:
    """The PostgreSQL servers that run in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")
            if b"-D" in command and any(str(folder).encode() in word for word in command):
                found.append(int(process.name))
    return found


class Demo:
    """`paidonce serve` without a configuration."""

    def __init__(self, command: list[str], folder: Path, port: int, *arguments: str) -> None:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PAIDONCE_")}
        self.log = folder / "told"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "serve", "--port", str(port), *arguments],
                cwd=folder,
                env=variables,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.service = Service(folder, self.process, port)

    def told(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(self.told())
        try:
            return self.service.request("GET", "/readyz").http == 200
        except OSError:
            return False

    def line(self) -> list[str]:
        """The command that it invites to run."""
        (line,) = re.findall(r"^\s*(\S.* send .*)$", self.told(), re.MULTILINE)
        return shlex.split(line)
