"""With which keys the senders of `generic` sources sign, and how a signature is written.

`secrets` are the keys of an HMAC, as text. For ed25519 and rsa-sha256 they are public keys: PEM, or
base64 of DER, or of the 32 bytes of an ed25519 key.
"""

import base64
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from paidonce.errors import ConfigurationError
from paidonce.providers.contract import Setup
from paidonce.providers.signing import any_matches, exact_base64

MIN_RSA_BITS: Final = 2048
HMACS: Final = {"hmac-sha256": "sha256", "hmac-sha1": "sha1", "hmac-sha512": "sha512"}
ALGORITHMS: Final = (*HMACS, "ed25519", "rsa-sha256")
ENCODINGS: Final = ("hex", "base64")

_RAW_ED25519: Final = 32

PublicKey = Ed25519PublicKey | RSAPublicKey


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a signature is written: lower-case hex or base64, after a prefix."""

    encoding: str
    prefix: str

    def write(self, signature: bytes) -> str:
        is_hex = self.encoding == "hex"
        return self.prefix + (signature.hex() if is_hex else base64.b64encode(signature).decode())

    def read(self, text: str) -> bytes | None:
        """The signature, if this is the one way to write it."""
        if not text.startswith(self.prefix):
            return None
        written = text.removeprefix(self.prefix)
        return _exact_hex(written) if self.encoding == "hex" else exact_base64(written)


@dataclass(frozen=True, slots=True, eq=False)
class Macs:
    """A sender that signs with HMAC."""

    algorithm: str
    spelling: Spelling
    secrets: tuple[bytes, ...] = field(repr=False)

    def prove(self, signatures: Iterable[str], content: bytes) -> bool:
        """Whether one of the signatures is of this content, by one of the secrets."""
        expected = [self._signature(secret, content).encode() for secret in self.secrets]
        return bool([one for one in signatures if any_matches(one, expected)])

    def sign(self, content: bytes) -> str:
        return self._signature(self.secrets[0], content)

    def _signature(self, secret: bytes, content: bytes) -> str:
        return self.spelling.write(hmac.digest(secret, content, HMACS[self.algorithm]))


@dataclass(frozen=True, slots=True, eq=False)
class PublicKeys:
    """A sender that signs with a private key of its own."""

    algorithm: str
    spelling: Spelling
    keys: tuple[PublicKey, ...]

    def prove(self, signatures: Iterable[str], content: bytes) -> bool:
        """Whether one of the signatures is of this content, by one of the keys."""
        read = [self.spelling.read(one) for one in signatures]
        return any(
            _verifies(key, one, content) for one in read if one is not None for key in self.keys
        )

    def sign(self, content: bytes) -> str:
        """Raises ConfigurationError: nobody can."""
        raise ConfigurationError(
            "a public key signs nothing: a test webhook needs an HMAC's secret"
        )


def configured_keys(setup: Setup, signature: Setup) -> Macs | PublicKeys:
    """The secrets of a source, as its table `signature` wants them. Raises ConfigurationError."""
    algorithm = signature.choice("algorithm", ALGORITHMS)
    prefix = signature.options.get("prefix", "")
    if not isinstance(prefix, str):
        raise ConfigurationError(
            f'{signature.key}.prefix = {prefix!r}: write it as text, such as "sha256="'
        )
    spelling = Spelling(signature.choice("encoding", ENCODINGS), prefix)
    secrets = setup.needed_secrets()
    if algorithm in HMACS:
        return Macs(algorithm, spelling, tuple(secret.encode() for secret in secrets))
    keys = [
        _public_key(secret, algorithm, f"{setup.key}.secrets[{index}]")
        for index, secret in enumerate(secrets)
    ]
    return PublicKeys(algorithm, spelling, tuple(keys))


def _public_key(secret: str, algorithm: str, key: str) -> PublicKey:
    if "PRIVATE KEY" in secret:
        raise ConfigurationError(f"{key}: is a private key; give the sender's public one")
    try:
        loaded = _loaded(secret.strip())
    except (ValueError, UnsupportedAlgorithm):
        loaded = None
    if algorithm == "ed25519" and isinstance(loaded, Ed25519PublicKey):
        return loaded
    if algorithm == "rsa-sha256" and isinstance(loaded, RSAPublicKey):
        if loaded.key_size < MIN_RSA_BITS:
            raise ConfigurationError(f"{key}: has fewer than {MIN_RSA_BITS} bits; use a longer one")
        return loaded
    raise ConfigurationError(
        f"{key}: is no public key of {algorithm}; give it as PEM, or as base64 of DER"
    )


def _loaded(text: str) -> object:
    if text.startswith("-----BEGIN"):
        return load_pem_public_key(text.encode())
    value = base64.b64decode("".join(text.split()), validate=True)
    if len(value) == _RAW_ED25519:
        return Ed25519PublicKey.from_public_bytes(value)
    return load_der_public_key(value)


def _verifies(key: PublicKey, signature: bytes, content: bytes) -> bool:
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, content)
        else:
            key.verify(signature, content, PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def _exact_hex(text: str) -> bytes | None:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        return None
    return value if value.hex() == text else None
