"""Compares settings: what a reload changes, and which of it needs a restart.

Only the names of settings are told, never their values.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import orjson

from paidonce.reload.model import Candidate, Origin
from paidonce.settings import Settings

NEEDS_RESTART: Final = ("environment", "database", "server", "bus", "handlers", "log")
"""Settings that a process reads once: a socket, a pool, the code of handlers, the log."""


def compare(current: Settings, new: Settings, origin: Origin) -> Candidate:
    """The new settings, with the current values of those that need a restart."""
    kept = {name: getattr(current, name) for name in NEEDS_RESTART}
    settings = new.model_copy(update=kept)
    needs_restart = _changed(_dumped(settings), _dumped(new))
    changed = _changed(_dumped(current), _dumped(settings))
    text = orjson.dumps(_dumped(new), default=str, option=orjson.OPT_SORT_KEYS)
    digest = blake2b(text, digest_size=16, key=origin.digest_key).digest()
    return Candidate(settings, changed, needs_restart, digest)


def _dumped(settings: Settings) -> dict[str, Any]:
    return settings.model_dump(mode="json")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return sorted(_names(before, after, ""))


def _names(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name in before.keys() | after.keys():
        one, other = before.get(name), after.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _names(one, other, f"{prefix}{name}.")
        elif name not in before:
            yield f"{prefix}{name} (new)"
        elif name not in after:
            yield f"{prefix}{name} (removed)"
        elif one != other:
            yield f"{prefix}{name}"
