"""A nonce is used once: the same nonce with another meaning is a replay (SEC-3).

Nonces are recorded in the transaction that stores their events: only a delivery that is verified
and stored uses its nonce up. Few sources have nonces.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from paidonce.core.events import SourceId
from paidonce.db.queries import Connection, load_queries
from paidonce.errors import ReplayedNonceError
from paidonce.processing.items import Incoming, Item, Rejected
from paidonce.providers.contract import FINGERPRINT_VERSION, fingerprint, key_digest

QUERIES: Final = load_queries(__file__)

NonceKey = tuple[SourceId, bytes]
"""A source and the digest of a nonce."""


def has_nonces(items: Sequence[Item]) -> bool:
    """Whether any of the items has a nonce."""
    return any(isinstance(one, Incoming) and one.identity.nonce is not None for one in items)


async def refuse_replays(
    connection: Connection, items: Sequence[Item], *, record: bool = True
) -> Sequence[Item]:
    """Replace items whose nonce was used for something else by refused ones; the first use counts.

    Records the nonces in the transaction of the caller, unless it is a dry run.
    """
    if not has_nonces(items):
        return items
    uses = [_nonce_use(item) for item in items]
    first: dict[NonceKey, bytes] = {}
    for used in uses:
        if used is not None:
            first.setdefault(*used)
    if record:
        await QUERIES["record_nonces"].run(
            connection,
            **_columns(first),
            fingerprint=list(first.values()),
            fingerprint_version=FINGERPRINT_VERSION,
        )
    # A new statement: it sees what the transactions committed that the first one waited for.
    rows = await QUERIES["recorded_nonces"].rows(
        connection, **_columns(first), fingerprint_version=FINGERPRINT_VERSION
    )
    recorded = {(SourceId(row[0]), row[1]): row[2] for row in rows}
    return [
        _refuse(item) if isinstance(item, Incoming) and _is_replayed(used, recorded) else item
        for item, used in zip(items, uses, strict=True)
    ]


def _columns(keys: Iterable[NonceKey]) -> dict[str, object]:
    source_ids, digests = zip(*keys, strict=True)
    return {"source_id": source_ids, "digest": digests}


def _nonce_use(item: Item) -> tuple[NonceKey, bytes] | None:
    """The nonce of the item, and what it is used for: the key and the meaning of the event."""
    if not isinstance(item, Incoming) or item.identity.nonce is None:
        return None
    source_id, key = item.key
    meaning = fingerprint(key.hex(), item.identity.fingerprint.hex())
    return (source_id, key_digest(item.identity.nonce)), meaning


def _is_replayed(used: tuple[NonceKey, bytes] | None, recorded: Mapping[NonceKey, bytes]) -> bool:
    """Whether it was used for something else."""
    if used is None:
        return False
    key, meaning = used
    return recorded.get(key, meaning) != meaning


def _refuse(item: Incoming) -> Rejected:
    refusal = ReplayedNonceError("its nonce was used before, by a delivery with another meaning")
    return Rejected(
        item.event_id, item.source, item.request, item.delivery, refusal, signature_valid=True
    )
