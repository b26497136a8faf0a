"""A description of the machine on which a run was made."""

import os
import platform
import sysconfig
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("fastapi", "sqlalchemy", "asyncpg", "uvicorn", "uvloop", "httptools")


def describe_machine(settings: dict[str, str]) -> dict[str, str]:
    """Facts by name. `settings` are those of the PostgreSQL server."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "Date": datetime.now(UTC).date().isoformat(),
        "Machine": f"{_cpu_model()}, {os.cpu_count()} cores, {memory_gb:.0f} GB of memory, "
        f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_version()}, {_build()}",
        "PostgreSQL": ", ".join(
            value if name == "server_version" else f"{name} = {value}"
            for name, value in settings.items()
        ),
        "Packages": ", ".join(f"{package} {version(package)}" for package in PACKAGES),
    }


def _build() -> str:
    """Whether the interpreter was built with optimisation. It affects all contenders alike."""
    optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return f"built {'with' if optimised else 'without'} profile-guided optimisation"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
