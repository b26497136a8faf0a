"""Signing keys of `generic` sources, and how a signature is encoded.

`secrets` are HMAC keys as text, or public keys for ed25519 and rsa-sha256.
"""

import base64
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from paidonce.errors import ConfigurationError
from paidonce.providers.contract import ProviderConfig
from paidonce.providers.public_keys import KEY_TYPES, PublicKey, is_signed_by_any, load_public_key
from paidonce.providers.signing import any_matches

HMACS: Final = {"hmac-sha256": "sha256", "hmac-sha1": "sha1", "hmac-sha512": "sha512"}
ENCODINGS: Final = ("hex", "base64")


@dataclass(frozen=True, slots=True, eq=False)
class SigningKeys:
    """The keys of a sender, and how it writes a signature: as hex or base64, after a prefix."""

    algorithm: str
    encoding: str
    prefix: str
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """Of a sender that signs with HMAC; others have public keys."""
    public_keys: tuple[PublicKey, ...] = ()

    def verify(self, signatures: Iterable[str], content: bytes) -> bool:
        """Whether one of the keys made one of the signatures."""
        if self.secrets:
            expected = [self._sign(secret, content).encode() for secret in self.secrets]
            return bool([one for one in signatures if any_matches(one, expected)])
        decoded = [one for one in map(self._decode, signatures) if one is not None]
        return is_signed_by_any(self.public_keys, decoded, content)

    def sign(self, content: bytes) -> str:
        """Sign with the first secret. Raises ConfigurationError if there are public keys only."""
        if not self.secrets:
            raise ConfigurationError(
                "a public key cannot sign: a test webhook needs an HMAC secret"
            )
        return self._sign(self.secrets[0], content)

    def _sign(self, secret: bytes, content: bytes) -> str:
        return self._encode(hmac.digest(secret, content, HMACS[self.algorithm]))

    def _encode(self, signature: bytes) -> str:
        is_hex = self.encoding == "hex"
        return self.prefix + (signature.hex() if is_hex else base64.b64encode(signature).decode())

    def _decode(self, text: str) -> bytes | None:
        """Decode a signature; None unless it is written exactly as `_encode` writes it."""
        encoded = text.removeprefix(self.prefix)
        try:
            is_hex = self.encoding == "hex"
            value = bytes.fromhex(encoded) if is_hex else base64.b64decode(encoded, validate=True)
        except ValueError:
            return None
        return value if self._encode(value) == text else None


def load_keys(config: ProviderConfig, signature: ProviderConfig) -> SigningKeys:
    """Load the secrets of a source as its table `signature` says. Raises ConfigurationError."""
    algorithm = signature.choice("algorithm", (*HMACS, *KEY_TYPES))
    prefix = signature.options.get("prefix", "")
    if not isinstance(prefix, str):
        raise signature.invalid("prefix", 'write it as text, e.g. "sha256="')
    encoding = signature.choice("encoding", ENCODINGS)
    if algorithm in HMACS:
        secrets = tuple(secret.encode() for secret in config.require_secrets())
        return SigningKeys(algorithm, encoding, prefix, secrets)
    keys = (load_public_key(secret, key, algorithm) for key, secret in config.named_secrets())
    return SigningKeys(algorithm, encoding, prefix, public_keys=tuple(keys))
