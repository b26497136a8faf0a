"""`paidonce doctor`: checks the installation and changes nothing.

Each check is a function that returns its result. A check that depends on a failed one is skipped;
an exception inside a check is a result too.
"""

from pathlib import Path

from paidonce.doctor import database, machine
from paidonce.doctor.checks import CheckResult, refused, skipped
from paidonce.errors import ConfigurationError
from paidonce.settings.reading import config_path, load_settings

__all__ = ["CheckResult", "examine"]


async def examine(config: Path | None = None) -> list[CheckResult]:
    """Run every check. Raises nothing."""
    try:
        world = machine.Installation(load_settings(config), config_path(config))
    except (ConfigurationError, OSError) as error:
        first, *others = [*machine.CHECKS, *database.CHECKS]
        return [refused(error, first), *skipped(others, "the configuration cannot be read")]
    return machine.examine(world) + await database.examine(world.settings)
