"""Secrets, which may be outside the settings."""

import os
import secrets
from contextlib import suppress
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


def kept_secret(path: Path, key: str) -> str:
    """The secret in this file. If several processes start at once, the first one creates it.

    Raises ConfigurationError, which names the key.
    """
    try:
        if not path.exists():
            _create_secret_file(path)
        return resolve_secret(f"file:{path}", key)
    except OSError as error:
        raise ConfigurationError(f"{key}: the file {path} cannot be created: {error}") from None


def _create_secret_file(path: Path) -> None:
    """Create the file atomically: no process may read half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _read_secret_file(name: str, key: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{key}: the file {name} cannot be read: {error}") from None
