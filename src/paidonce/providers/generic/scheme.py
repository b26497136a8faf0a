"""Signature schemes of `generic` sources, as the table `signature` describes them.

The signed content can be split in only one way; otherwise a captured signature would fit other
parts. A body is a JSON object, so the first brace belongs to it; a time is digits; an id contains
neither braces nor blanks; and between a time and an id there is something that is not a digit.
The keys are the source's `secrets`: HMAC keys as text, or public keys for ed25519 and rsa-sha256.
"""

import base64
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers import read
from paidonce.providers.contract import Delivery, ProviderConfig
from paidonce.providers.field_mapping import HEADER_PREFIX, header_name
from paidonce.providers.public_keys import (
    KEY_TYPES,
    PublicKey,
    der,
    is_signed_by_any,
    load_public_key,
)
from paidonce.providers.signing import any_matches, check_timestamp

HMACS: Final = {"hmac-sha256": "sha256", "hmac-sha1": "sha1", "hmac-sha512": "sha512"}
ENCODINGS: Final = ("hex", "base64")
MAX_PAIRS: Final = 32
"""How many pairs of a header are read; a sender that rotates its keys sends three."""

OPTIONS: Final = frozenset({
    "header", "algorithm", "encoding", "prefix", "signed", "pairs", "value", "timestamp", "id",
    "url",
})  # fmt: skip
PLACEHOLDERS: Final = ("body", "timestamp", "id", "url")
"""All but the body are options too, which say where the value is."""

_TIMESTAMP: Final = re.compile(r"[0-9]{1,14}")
_ID: Final = re.compile(r"[!-z|~]{1,255}")
_SEPARATOR: Final = re.compile(r"[;,]")
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_ONLY_DIGITS: Final = re.compile(r"[0-9]*")


@dataclass(frozen=True, slots=True, eq=False)
class SigningKeys:
    """The keys of a sender, and how it writes a signature: as hex or base64, after a prefix."""

    algorithm: str
    encoding: str
    prefix: str
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """Of a sender that signs with HMAC; others have public keys."""
    public_keys: tuple[PublicKey, ...] = ()

    @property
    def all(self) -> tuple[bytes, ...]:
        """The keys as bytes; public keys as DER."""
        return self.secrets or tuple(der(key) for key in self.public_keys)

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


@dataclass(frozen=True, slots=True, eq=False)
class SignatureScheme:
    """What one sender signs, with which keys, and where it puts the signature."""

    keys: SigningKeys
    template: tuple[bytes | str, ...]
    """The signed content: literal bytes, and placeholders as text."""
    header: str
    value: str | None
    """The name of the pairs that are signatures; None if the whole header is one."""
    timestamp: str | None
    """The name of the pair that is the time."""
    timestamp_header: str | None
    id_header: str | None
    url: str | None
    """The signed address; None if none is signed."""

    @property
    def signed_headers(self) -> frozenset[str]:
        return frozenset(one for one in (self.timestamp_header, self.id_header) if one)

    def verify(self, delivery: Delivery, tolerance_s: int | None) -> None:
        """Raise InvalidSignatureError or TimestampExpiredError unless the sender signed it."""
        header = delivery.headers.get(self.header)
        if header is None:
            raise InvalidSignatureError(f"there is no {self.header} header")
        pairs = [] if self.value is None else _split_pairs(header)
        signatures = [value for name, value in pairs if name == self.value]
        timestamp = self._timestamp(delivery.headers, pairs)
        signed_id = self.signed_id(delivery.headers)
        content = self._signed_content(delivery.body, timestamp, signed_id)
        if not self.keys.verify([header] if self.value is None else signatures, content):
            raise InvalidSignatureError("no signature matches the delivery")
        if timestamp is not None:
            count = int(timestamp)
            signed_at_s = count / 1000 if count > read.MAX_SECONDS else count
            check_timestamp(signed_at_s, delivery.received_at, tolerance_s)

    def signed_id(self, headers: Mapping[str, str]) -> str | None:
        """Return the signed id, None if none is signed. Raises InvalidSignatureError."""
        if self.id_header is None:
            return None
        given = headers.get(self.id_header, "")
        if not _ID.fullmatch(given):
            raise InvalidSignatureError(f"the header {self.id_header} is missing or not an id")
        return given

    def sign(self, body: bytes, event_id: str | None, sent_at: datetime) -> dict[str, str]:
        """Return the headers that sign the body. Raises ConfigurationError with public keys."""
        timestamp, signed_id = str(int(sent_at.timestamp())), event_id or uuid4().hex
        signature = self.keys.sign(self._signed_content(body, timestamp, signed_id))
        if self.value is not None:
            signature = f"{self.value}={signature}"
        if self.timestamp is not None:
            signature = f"{self.timestamp}={timestamp};{signature}"
        headers = {
            self.header: signature,
            self.timestamp_header: timestamp,
            self.id_header: signed_id,
        }
        return {name: value for name, value in headers.items() if name is not None}

    def _signed_content(self, body: bytes, timestamp: str | None, signed_id: str | None) -> bytes:
        timestamp_bytes, id_bytes = (timestamp or "").encode(), (signed_id or "").encode()
        values = {"body": body, "timestamp": timestamp_bytes, "id": id_bytes}
        return b"".join(one if isinstance(one, bytes) else values[one] for one in self.template)

    def _timestamp(self, headers: Mapping[str, str], pairs: list[tuple[str, str]]) -> str | None:
        if self.timestamp is None and self.timestamp_header is None:
            return None
        found = [value for name, value in pairs if name == self.timestamp]
        if self.timestamp_header is not None:
            found = [headers.get(self.timestamp_header, "")]
        if len(found) != 1 or not _TIMESTAMP.fullmatch(found[0]):
            raise InvalidSignatureError("the signed time is missing or not a number")
        return found[0]


def load_scheme(config: ProviderConfig) -> SignatureScheme:
    """Load the scheme from a source's table `signature`. Raises ConfigurationError."""
    table = config.options.get("signature")
    if not isinstance(table, Mapping):
        raise ConfigurationError(
            f"{config.key}.signature: is required, a table [{config.key}.signature] with at least "
            f'header = "X-Signature"'
        )
    options = _with_event_id(table, config.options)
    signature = ProviderConfig(f"{config.key}.signature", options=options)
    signature.reject_unknown_options(OPTIONS)
    header, value = _load_header(signature, "header", "X-Signature"), _load_value(signature)
    has_time, has_id = "timestamp" in options, "id" in options
    is_pair = has_time and value is not None and not _names_header(options["timestamp"])
    in_header = has_time and not is_pair
    return SignatureScheme(
        keys=_load_keys(config, signature),
        template=_load_template(signature),
        header=header,
        value=value,
        timestamp=signature.require_text("timestamp", "ts") if is_pair else None,
        timestamp_header=_load_header(signature, "timestamp", "X-Timestamp") if in_header else None,
        id_header=_load_header(signature, "id", "X-Event-Id") if has_id else None,
        url=options.get("url"),
    )


def _with_event_id(table: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Use the header of `fields.event_id` for `{id}`, unless the table names one."""
    fields = options.get("fields")
    event_id = fields.get("event_id") if isinstance(fields, Mapping) else None
    is_signed = "{id}" in str(table.get("signed"))
    if "id" in table or not is_signed or not _names_header(event_id):
        return table
    return {**table, "id": event_id}


def _names_header(location: Any) -> bool:
    return isinstance(location, str) and location.startswith(HEADER_PREFIX)


def _load_keys(config: ProviderConfig, signature: ProviderConfig) -> SigningKeys:
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


def _load_value(signature: ProviderConfig) -> str | None:
    """Return the name of the pairs that are signatures, None if there are no pairs."""
    has_pairs = signature.options.get("pairs", False)
    if not isinstance(has_pairs, bool):
        raise signature.invalid("pairs", "write true or false")
    if has_pairs:
        return signature.require_text("value", "h1")
    if "value" in signature.options:
        remedy = "names a pair of the header; write pairs = true, or remove it"
        raise signature.invalid("value", remedy)
    return None


def _load_template(signature: ProviderConfig) -> tuple[bytes | str, ...]:
    text = signature.options.get("signed", "{body}")
    if not isinstance(text, str):
        raise signature.invalid("signed", 'write it as text, e.g. "{body}"')
    parts = _PLACEHOLDER.split(text)
    literals, names = parts[::2], parts[1::2]
    problem = _template_problem(literals, names)
    if problem is not None:
        raise signature.invalid("signed", problem)
    for name in PLACEHOLDERS[1:]:
        _check_location(signature, text, name, name in names)
    values = {"url": _load_url(signature).encode()}
    return tuple(
        values.get(part, part) if index % 2 else part.encode()
        for index, part in enumerate(parts)
        if part
    )


def _template_problem(literals: list[str], names: list[str]) -> str | None:
    """Return what is wrong with a template, None if it can be split in only one way."""
    unknown = next((name for name in names if name not in PLACEHOLDERS), None)
    if unknown is not None:
        known = " ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        return f"there is no {{{unknown}}}; known are {known}"
    if any(brace in literal for literal in literals for brace in "{}"):
        return "contains a brace outside of a placeholder"
    if names.count("body") != 1 or len(set(names)) != len(names):
        return "write {body} once, and nothing twice"
    for between, *pair in zip(literals[1:], names, names[1:], strict=False):
        if {*pair} == {"id", "timestamp"} and _ONLY_DIGITS.fullmatch(between):
            return (
                "id and time cannot be distinguished; "
                'write something between them that is not a digit, e.g. "."'
            )
    return None


def _check_location(signature: ProviderConfig, text: str, name: str, is_signed: bool) -> None:
    """Check that a value has a location if and only if it is signed."""
    given = signature.options.get(name)
    if is_signed and given is None:
        raise ConfigurationError(
            f"{signature.key}.{name}: is required, because {{{name}}} is signed"
        )
    if given is not None and not is_signed:
        remedy = f"is not signed; add {{{name}}} to signed = {text!r}, or remove it"
        raise signature.invalid(name, remedy)


def _load_url(signature: ProviderConfig) -> str:
    if "url" not in signature.options:
        return ""
    url = signature.require_text("url", "https://example.com/webhooks/shop")
    if not url.startswith(("https://", "http://")):
        remedy = "write the whole address exactly as it is set at the sender"
        raise signature.invalid("url", remedy)
    return url


def _load_header(signature: ProviderConfig, option: str, example: str) -> str:
    """Return the name of a header in lower case."""
    name = signature.require_text(option, example)
    try:
        return header_name(name.removeprefix(HEADER_PREFIX))
    except ValueError as error:
        raise signature.invalid(option, f"{error}; write e.g. {example!r}") from None


def _split_pairs(header: str) -> list[tuple[str, str]]:
    pairs = (one.strip() for one in _SEPARATOR.split(header, MAX_PAIRS)[:MAX_PAIRS])
    return [(name, value) for name, _, value in (one.partition("=") for one in pairs)]
