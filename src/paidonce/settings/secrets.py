"""Secrets, which may be outside the settings."""

import os
from pathlib import Path

from paidonce.errors import ConfigurationError


def resolve_secret(reference: str, key: str) -> str:
    """The secret that a reference stands for: `env:NAME`, `file:PATH`, or the secret itself.

    Raises ConfigurationError if it is missing or empty: everybody could sign with it.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        secret = os.environ.get(name, "")
        where = f"the environment variable {name} is not set, or empty"
    elif kind == "file":
        secret = _read_secret_file(name, key)
        where = f"the file {name} is empty"
    else:
        secret, where = reference, "the secret is empty"
    if not secret.strip():
        raise ConfigurationError(f"{key}: {where}")
    return secret


def _read_secret_file(name: str, key: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{key}: the file {name} cannot be read: {error}") from None
