"""`paidonce bans`."""

from typing import Final

from paidonce.db.paging import all_pages
from paidonce.guard.model import BanQuery
from paidonce.terminal.commands import Commands, Result
from paidonce.terminal.output import columns, stderr
from paidonce.terminal.session import Config, Services, Use, operate, operator

MAX_SHOWN: Final = 1_000

commands = Commands("bans", "Banned addresses.")


@commands.operation(
    "list", columns("address, reason, times, banned_at as since, until"), use=Use.STORED
)
def list_bans(services: Services) -> Result:
    """List banned addresses."""
    return all_pages(services.bans.search, BanQuery(), MAX_SHOWN)


@commands.command("lift")
def lift_ban(address: str, config: Config = None) -> None:
    """Lift a ban; a running service follows within seconds."""
    operate(config, lambda services: services.bans.lift(address, operator()), Use.STORED)
    stderr.print(f"{address} is no longer banned.")
