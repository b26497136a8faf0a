"""What can be seen without an API key, and where.

With `server.admin_port`, everything for operators is behind a port of its own. Without it, one port
answers all; in production it tells names and numbers of the health check only to a valid key.
"""

import hmac
from dataclasses import dataclass, field

from fastapi import Request
from fastapi.security import HTTPBearer

from paidonce.api.problems import Problem, ProblemError
from paidonce.api.requests import Needs
from paidonce.core.actors import Scope
from paidonce.errors import ConfigurationError
from paidonce.settings import Settings
from paidonce.settings.secrets import resolve_secret

_BEARER = HTTPBearer(auto_error=False)
_NO_TOKEN = Problem(
    401, "UNAUTHENTICATED", "Send the token of the metrics: Authorization: Bearer …"
)


@dataclass(frozen=True, slots=True)
class Exposure:
    """Who sees the details of the health check, and the metrics."""

    has_open_details: bool = True
    has_keys: bool = True
    """Whether the application checks API keys."""
    metrics_token: bytes | None = field(default=None, repr=False)

    async def shows_details(self, request: Request) -> bool:
        """Whether to tell names and numbers. Raises ProblemError for an invalid key."""
        if self.has_open_details or not self.has_keys:
            return self.has_open_details
        credentials = await _BEARER(request)
        if credentials is None:
            return False
        await Needs(Scope.READ)(request, credentials)
        return True

    async def check_metrics(self, request: Request) -> None:
        """Raise ProblemError unless the request has the token, if one is set."""
        if self.metrics_token is None:
            return
        credentials = await _BEARER(request)
        given = "" if credentials is None else credentials.credentials
        if not hmac.compare_digest(given.encode(), self.metrics_token):
            raise ProblemError(_NO_TOKEN)


def load_exposure(settings: Settings, *, has_keys: bool = True) -> Exposure:
    """Raises ConfigurationError."""
    server = settings.server
    is_open = server.admin_port is not None or settings.environment == "development"
    return Exposure(is_open, has_keys, load_metrics_token(settings))


def load_metrics_token(settings: Settings) -> bytes | None:
    """The token of the metrics; None if there is none. Raises ConfigurationError."""
    key = "server.metrics_token"
    reference = settings.server.metrics_token
    if reference is None:
        return None
    token = resolve_secret(reference, key).strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(f"{key} (hidden): contains characters that no header can carry")
    return token.encode()
