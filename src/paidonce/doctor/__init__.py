"""`paidonce doctor`: checks the installation and changes nothing.

Each check is a function that returns its result. A check that depends on a failed one is skipped;
an exception inside a check is a result too.
"""

from functools import partial
from pathlib import Path

from paidonce.doctor import database, machine
from paidonce.doctor.checks import CheckResult, CheckState, one_line, run_check, skipped
from paidonce.errors import ConfigurationError

__all__ = ["CheckResult", "CheckState", "examine"]


async def examine(config: Path | None = None) -> list[CheckResult]:
    """Run every check. Raises nothing."""
    try:
        world = machine.read(config)
    except (ConfigurationError, OSError) as error:
        names = [*machine.CHECKS.keys(), *database.CHECKS]
        wrong = CheckResult(
            names[0], CheckState.PROBLEM, one_line(error), "correct the setting that it names"
        )
        return [wrong, *skipped(names[1:], "the configuration cannot be read")]
    here = [run_check(name, partial(check, world)) for name, check in machine.CHECKS.items()]
    return here + await database.examine_database(world.settings)
