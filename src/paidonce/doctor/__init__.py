"""What is wrong, and what to do about it: `paidonce doctor` looks, and changes nothing.

Each check is a function that returns a finding. One that cannot be made because of another's
finding is skipped; whatever goes wrong inside of one is a finding as well.
"""

from functools import partial
from pathlib import Path

from paidonce.doctor import database, machine
from paidonce.doctor.findings import Finding, State, made, one_line, skipped
from paidonce.errors import ConfigurationError

__all__ = ["Finding", "State", "examine"]


async def examine(config: Path | None = None) -> list[Finding]:
    """Make every check. Raises nothing."""
    try:
        world = machine.read(config)
    except (ConfigurationError, OSError) as error:
        names = [*machine.CHECKS.keys(), *database.CHECKS]
        wrong = Finding(names[0], State.PROBLEM, one_line(error), "mend what it names")
        return [wrong, *skipped(names[1:], "the configuration cannot be read")]
    here = [made(name, partial(check, world)) for name, check in machine.CHECKS.items()]
    return here + await database.examine_database(world.settings)
