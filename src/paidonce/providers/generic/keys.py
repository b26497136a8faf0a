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
from paidonce.providers.public_keys import (
    KEY_TYPES,
    PublicKey,
    is_valid_signature,
    load_public_key,
)
from paidonce.providers.signing import any_matches, decode_base64

HMACS: Final = {"hmac-sha256": "sha256", "hmac-sha1": "sha1", "hmac-sha512": "sha512"}
ENCODINGS: Final = ("hex", "base64")


@dataclass(frozen=True, slots=True)
class SignatureEncoding:
    """How a signature is written: lower-case hex or base64, after a prefix."""

    encoding: str
    prefix: str

    def encode(self, signature: bytes) -> str:
        is_hex = self.encoding == "hex"
        return self.prefix + (signature.hex() if is_hex else base64.b64encode(signature).decode())

    def decode(self, text: str) -> bytes | None:
        """Decode a canonical signature; None for anything else."""
        if not text.startswith(self.prefix):
            return None
        encoded = text.removeprefix(self.prefix)
        return _decode_hex(encoded) if self.encoding == "hex" else decode_base64(encoded)


@dataclass(frozen=True, slots=True, eq=False)
class HmacKeys:
    """The secrets of a sender that signs with HMAC."""

    algorithm: str
    encoding: SignatureEncoding
    secrets: tuple[bytes, ...] = field(repr=False)

    def verify(self, signatures: Iterable[str], content: bytes) -> bool:
        """Whether one of the secrets made one of the signatures."""
        expected = [self._sign(secret, content).encode() for secret in self.secrets]
        return bool([one for one in signatures if any_matches(one, expected)])

    def sign(self, content: bytes) -> str:
        return self._sign(self.secrets[0], content)

    def _sign(self, secret: bytes, content: bytes) -> str:
        return self.encoding.encode(hmac.digest(secret, content, HMACS[self.algorithm]))


@dataclass(frozen=True, slots=True, eq=False)
class PublicKeys:
    """The public keys of a sender that signs with a private key."""

    algorithm: str
    encoding: SignatureEncoding
    keys: tuple[PublicKey, ...]

    def verify(self, signatures: Iterable[str], content: bytes) -> bool:
        """Whether one of the keys made one of the signatures."""
        decoded = [one for one in map(self.encoding.decode, signatures) if one is not None]
        return any(is_valid_signature(key, one, content) for one in decoded for key in self.keys)

    def sign(self, content: bytes) -> str:
        """Raise ConfigurationError: a public key cannot sign."""
        raise ConfigurationError("a public key cannot sign: a test webhook needs an HMAC secret")


def load_keys(config: ProviderConfig, signature: ProviderConfig) -> HmacKeys | PublicKeys:
    """Load the secrets of a source as its table `signature` says. Raises ConfigurationError."""
    algorithm = signature.choice("algorithm", (*HMACS, *KEY_TYPES))
    prefix = signature.options.get("prefix", "")
    if not isinstance(prefix, str):
        raise ConfigurationError(
            f'{signature.key}.prefix = {prefix!r}: write it as text, e.g. "sha256="'
        )
    encoding = SignatureEncoding(signature.choice("encoding", ENCODINGS), prefix)
    if algorithm in HMACS:
        secrets = (secret.encode() for secret in config.require_secrets())
        return HmacKeys(algorithm, encoding, tuple(secrets))
    keys = (load_public_key(secret, key, algorithm) for key, secret in config.named_secrets())
    return PublicKeys(algorithm, encoding, tuple(keys))


def _decode_hex(text: str) -> bytes | None:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        return None
    return value if value.hex() == text else None
