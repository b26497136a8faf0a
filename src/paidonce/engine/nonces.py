"""A nonce is used once: the same one with another meaning is a replay (SEC-3).

Few sources have one. Their nonces are recorded in the transaction that stores their events, so
that only what was verified and kept uses one up.
"""

from collections.abc import Mapping, Sequence

from paidonce.engine.items import Incoming, Item, Refused
from paidonce.errors import ReplayedNonceError
from paidonce.providers.contract import FINGERPRINT_VERSION, fingerprint, key_digest
from paidonce.store import nonces
from paidonce.store.nonces import NonceName, Use
from paidonce.store.queries import Connection


def has_nonces(items: Sequence[Item]) -> bool:
    """Whether any of the items has one. Most batches have none, and pay nothing for them."""
    return any(isinstance(one, Incoming) and one.identity.nonce is not None for one in items)


async def without_replays(
    connection: Connection, items: Sequence[Item], *, records: bool = True
) -> Sequence[Item]:
    """The items, those refused whose nonce was used for something else; the first one counts.

    Runs in the caller's transaction. Who only looks leaves nothing recorded.
    """
    if not has_nonces(items):
        return items
    uses = [_use(item) for item in items]
    first: dict[NonceName, Use] = {}
    for named in uses:
        if named is not None:
            first.setdefault(*named)
    recorded = await (nonces.record if records else nonces.recorded)(connection, first)
    return [
        _refused(item) if isinstance(item, Incoming) and _is_replayed(named, recorded) else item
        for item, named in zip(items, uses, strict=True)
    ]


def _use(item: Item) -> tuple[NonceName, Use] | None:
    """The nonce of the item, and what it is used for: an event's key and meaning."""
    if not isinstance(item, Incoming) or item.identity.nonce is None:
        return None
    source_id, key = item.key
    meaning = fingerprint(key.hex(), item.identity.fingerprint.hex())
    return (source_id, key_digest(item.identity.nonce)), Use(meaning, FINGERPRINT_VERSION)


def _is_replayed(named: tuple[NonceName, Use] | None, recorded: Mapping[NonceName, Use]) -> bool:
    """Whether it was used for something else. What an older program recorded cannot be compared."""
    if named is None:
        return False
    name, use = named
    known = recorded.get(name, use)
    same_version = known.fingerprint_version == use.fingerprint_version
    return same_version and known.fingerprint != use.fingerprint


def _refused(item: Incoming) -> Refused:
    refusal = ReplayedNonceError("its nonce was used before, by a delivery with another meaning")
    return Refused(
        item.event_id, item.source, item.request, item.delivery, refusal, signature_valid=True
    )
