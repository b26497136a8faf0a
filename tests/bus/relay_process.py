"""A process that relays, or follows: `python -m tests.bus.relay_process relay|carry|follow URL`."""

import asyncio
import sys

from paidonce.bus.postgres import PostgresBus
from paidonce.bus.relay import Relay
from paidonce.db.pool import open_database
from paidonce.runtime.crashpoints import arm
from paidonce.runtime.leader import Leader
from tests.bus.traffic import OtherBus, follower
from tests.support.postgres import SCHEMA

SMALL_BATCH = 20


async def main(role: str, url: str) -> None:
    arm("development")
    database = await open_database(url, SCHEMA)
    match role:
        case "relay":
            await Relay(PostgresBus(), Leader(database), max_batch=SMALL_BATCH).run()
        case "carry":
            await Relay(OtherBus(), Leader(database), max_batch=SMALL_BATCH).run()
        case _:
            await follower(database, max_batch=SMALL_BATCH).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
