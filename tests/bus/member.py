"""A process of its own that relays, or follows: `python -m tests.bus.member relay|follow URL`."""

import asyncio
import sys

from paidonce.bus.postgres import PostgresBus
from paidonce.bus.relay import Relay
from paidonce.crashpoints import arm
from paidonce.store.db import open_database
from tests.bus.traffic import follower

SMALL_BATCH = 20


async def main(role: str, url: str) -> None:
    arm("development")
    database = await open_database(url)
    if role == "relay":
        await Relay(database, PostgresBus(), max_batch=SMALL_BATCH).run()
    else:
        await follower(database, max_batch=SMALL_BATCH).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
