"""The jars of Apache Kafka, fetched by Maven once for all runs on this machine."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

VERSION: Final = "4.2.0"
LOGGER_VERSION: Final = "1.7.36"
"""The version of slf4j that Kafka uses. It writes the log of a broker that does not start."""
FETCH_TIMEOUT_S: Final = 240.0
REMEMBER_FAILURE_S: Final = 600.0
"""So that a run without a network waits for it once, and not in each of its workers."""

_POM: Final = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
      <version>{LOGGER_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class NoArtifactsError(Exception):
    """The jars cannot be had here. The message says why."""


def kafka_jars() -> Path:
    """The folder with the jars. Raises NoArtifactsError."""
    if shutil.which("java") is None:
        raise NoArtifactsError("there is no java")
    folder = _cache() / f"kafka-{VERSION}-slf4j-{LOGGER_VERSION}"
    if folder.is_dir():
        return folder
    if shutil.which("mvn") is None:
        raise NoArtifactsError("there is no mvn")
    with _alone(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _fetch(folder)
    return folder


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paidonce"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time; one that dies lets go."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path) -> None:
    """All of the jars or none: a folder of that name is complete."""
    failed = folder.with_name(f"{folder.name}.failed")
    if failed.exists() and time.time() - failed.stat().st_mtime < REMEMBER_FAILURE_S:
        raise NoArtifactsError("mvn could not fetch them a moment ago")
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        _run_maven(unfinished)
        (unfinished / "jars").rename(folder)
        failed.unlink(missing_ok=True)
    except (OSError, subprocess.SubprocessError) as error:
        failed.touch()
        raise NoArtifactsError(f"mvn could not fetch them: {type(error).__name__}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _run_maven(folder: Path) -> None:
    (folder / "pom.xml").write_text(_POM, encoding="utf-8")
    goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars")
    subprocess.run(
        ["mvn", "-B", "-q", *goal],
        cwd=folder,
        check=True,
        timeout=FETCH_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
