"""Nonces that verified deliveries have used."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from paidonce.domain.events import SourceId
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)

NonceName = tuple[SourceId, bytes]
"""A source and the digest of a nonce."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a nonce was used for."""

    fingerprint: bytes
    fingerprint_version: int


async def record(
    connection: Connection, wanted: Mapping[NonceName, Use]
) -> Mapping[NonceName, Use]:
    """Record the nonces that nobody has used, and say what each of them is used for now.

    In the caller's transaction: what it does not commit was not used.
    """
    uses = list(wanted.values())
    await QUERIES["record"].run(
        connection,
        **_named(wanted),
        fingerprint=[use.fingerprint for use in uses],
        fingerprint_version=[use.fingerprint_version for use in uses],
    )
    # Another statement: it sees what those have committed whom the first one waited for.
    return await recorded(connection, wanted)


async def recorded(connection: Connection, names: Iterable[NonceName]) -> Mapping[NonceName, Use]:
    """What those of the nonces that were used were used for."""
    rows = await QUERIES["recorded"].rows(connection, **_named(names))
    return {(SourceId(row[0]), row[1]): Use(row[2], row[3]) for row in rows}


def _named(names: Iterable[NonceName]) -> dict[str, object]:
    names = list(names)
    return {
        "source_id": [source_id for source_id, _ in names],
        "digest": [digest for _, digest in names],
    }
