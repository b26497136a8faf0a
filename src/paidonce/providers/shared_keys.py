"""Finds sources that accept the same key: a delivery of one can be replayed on the other (SEC-10).

The keys themselves are compared, wherever and however each is written: in a variable, in a file or
in the settings, as text, as `whsec_…`, as PEM or as base64.
"""

import base64
from collections.abc import Iterator, Mapping
from itertools import combinations

from paidonce.providers.contract import Provider

_PREFIX = b"whsec_"


def shared_keys(providers: Mapping[str, Provider]) -> list[str]:
    """Return what is wrong with each two sources that accept the same key. Names no key."""
    forms = {name: _forms(one) for name, one in providers.items()}
    return [
        f"sources.{first} and sources.{second} accept the same secret or public key, so a delivery "
        f"of one could be replayed on the other; {_remedy(providers[first], providers[second])}"
        for first, second in combinations(providers, 2)
        if not forms[first].isdisjoint(forms[second])
        and not _are_told_apart(providers[first], providers[second])
    ]


def _are_told_apart(first: Provider, second: Provider) -> bool:
    """Whether a delivery names its account, and each source accepts another one."""
    recipients = first.recipient(), second.recipient()
    return first.name == second.name and None not in recipients and len({*recipients}) == 2


def _remedy(first: Provider, second: Provider) -> str:
    if first.name == second.name == "alipay":
        return "give each its own app_id or seller_id"
    if first.name == second.name == "portone":
        return "give each its own secret, or its own store_id"
    return "give each its own secret"


def _forms(provider: Provider) -> frozenset[bytes]:
    return frozenset(form for key in provider.signing_keys() for form in _forms_of(key))


def _forms_of(key: bytes) -> Iterator[bytes]:
    """Yield the key, and the same key if it is text that another provider decodes."""
    yield key
    text = key.strip()
    yield text
    bare = text.removeprefix(_PREFIX).rstrip(b"=")
    yield bare
    try:
        yield base64.b64decode(bare + b"=" * (-len(bare) % 4), validate=True) or key
    except ValueError:
        return
