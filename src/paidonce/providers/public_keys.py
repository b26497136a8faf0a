"""Public keys of senders that sign with a private key: RSA and ed25519."""

import base64
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)

from paidonce.errors import ConfigurationError

MIN_RSA_BITS: Final = 2048
KEY_TYPES: Final[Mapping[str, type[Ed25519PublicKey] | type[RSAPublicKey]]] = {
    "ed25519": Ed25519PublicKey,
    "rsa-sha256": RSAPublicKey,
}
PublicKey = Ed25519PublicKey | RSAPublicKey

_ED25519_BYTES: Final = 32


def is_signed_by_any(
    keys: Collection[PublicKey], signatures: Iterable[bytes], content: bytes
) -> bool:
    """Whether one of the keys made one of the signatures."""
    return any(_is_valid(key, one, content) for one in signatures for key in keys)


def _is_valid(key: PublicKey, signature: bytes, content: bytes) -> bool:
    """Verify an ed25519 or an RSA (SHA-256, PKCS#1 v1.5) signature."""
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, content)
        else:
            key.verify(signature, content, PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def load_public_key(text: str, key: str, algorithm: str) -> PublicKey:
    """Load the public key in a setting. Raises ConfigurationError.

    Accepts PEM, a PEM certificate, base64 of DER, and base64 of the 32 bytes of an ed25519 key.
    """
    if "PRIVATE KEY" in text:
        raise ConfigurationError(f"{key}: is a private key; give the sender's public key")
    try:
        loaded = _load(text.strip())
    except (ValueError, UnsupportedAlgorithm):
        loaded = None
    if not isinstance(loaded, KEY_TYPES[algorithm]):
        raise ConfigurationError(
            f"{key}: is not a public key of {algorithm}; give it as PEM or as base64 of DER"
        )
    if isinstance(loaded, RSAPublicKey) and loaded.key_size < MIN_RSA_BITS:
        raise ConfigurationError(f"{key}: an RSA key needs at least {MIN_RSA_BITS} bits")
    return loaded


def der(key: PublicKey) -> bytes:
    """Return the key in its one form, however it was written in the settings."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _load(text: str) -> object:
    if "BEGIN CERTIFICATE" in text:
        return x509.load_pem_x509_certificate(text.encode()).public_key()
    if "BEGIN" in text:
        return load_pem_public_key(text.encode())
    value = base64.b64decode("".join(text.split()), validate=True)
    if len(value) == _ED25519_BYTES:
        return Ed25519PublicKey.from_public_bytes(value)
    return load_der_public_key(value)
