"""The pepper: a secret outside the database with which API keys are hashed."""

from pathlib import Path
from typing import Final

from paidonce.errors import ConfigurationError
from paidonce.settings import Settings
from paidonce.settings.secrets import kept_secret, resolve_secret

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
    return kept_secret(pepper_file(settings), _KEY).encode()


def pepper_file(settings: Settings) -> Path:
    """The file of a pepper that is not set."""
    return settings.database.data_dir / FILE_NAME
