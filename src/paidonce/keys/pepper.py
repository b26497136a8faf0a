"""The pepper: a secret outside the database with which API keys are hashed."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from paidonce.errors import ConfigurationError
from paidonce.settings import Settings
from paidonce.settings.secrets import resolve_secret

FILE_NAME: Final = "pepper"
SHORTEST: Final = 16
_KEY: Final = "security.pepper"


def load_pepper(settings: Settings) -> bytes | None:
    """The pepper for new keys; None means a plain hash. Raises ConfigurationError.

    With the embedded database it is a file in the data folder, unless it is set.
    """
    reference = settings.security.pepper
    if reference is not None:
        pepper = resolve_secret(reference, _KEY)
        if len(pepper) < SHORTEST:
            raise ConfigurationError(f"{_KEY} (hidden): give at least {SHORTEST} characters")
        return pepper.encode()
    if not settings.database.is_embedded:
        return None
    return _read_or_create(pepper_file(settings)).encode()


def pepper_file(settings: Settings) -> Path:
    """The file of a pepper that is not set."""
    return settings.database.data_dir / FILE_NAME


def _read_or_create(path: Path) -> str:
    """The content of the file. If several processes start at once, the first one creates it."""
    try:
        if not path.exists():
            _create(path)
        return resolve_secret(f"file:{path}", _KEY)
    except OSError as error:
        raise ConfigurationError(f"{_KEY}: the file {path} cannot be created: {error}") from None


def _create(path: Path) -> None:
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
