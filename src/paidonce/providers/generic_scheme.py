"""How the senders of `generic` sources sign: a scheme, read from the settings and checked there.

What is signed can be taken apart in one way only, or a captured signature would fit other parts: a
body is a JSON object, so that the first brace is its own; a time is digits; an id holds neither
braces nor blanks; and between a time and an id stands something that is no digit.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import uuid4

from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers.contract import Setup
from paidonce.providers.described import HEADER, header_name
from paidonce.providers.fields import MAX_SECONDS
from paidonce.providers.generic_keys import Macs, PublicKeys, configured_keys

MAX_PAIRS: Final = 32
"""How many pairs of a header are read; a sender that rotates its keys sends three."""

OPTIONS: Final = frozenset({
    "header", "algorithm", "encoding", "prefix", "signed", "pairs", "value", "timestamp", "id",
    "url",
})  # fmt: skip
WORDS: Final = ("body", "timestamp", "id", "url")
"""The words of a template. All but the body are options, too, which say where they are found."""

_TIMESTAMP: Final = re.compile(r"[0-9]{1,14}")
_ID: Final = re.compile(r"[!-z|~]{1,255}")
_SEPARATOR: Final = re.compile(r"[;,]")
_WORD: Final = re.compile(r"\{([^{}]*)\}")
_DIGITS_AT_MOST: Final = re.compile(r"[0-9]*")


class Envelope(NamedTuple):
    """What the headers say of a delivery. Believed only after the signature was checked."""

    signatures: tuple[str, ...]
    timestamp: str | None
    id: str | None

    @property
    def signed_at_s(self) -> float | None:
        """The time that was signed, whether it counts seconds or milliseconds."""
        if self.timestamp is None:
            return None
        count = int(self.timestamp)
        return count / 1000 if count > MAX_SECONDS else count


@dataclass(frozen=True, slots=True, eq=False)
class Scheme:
    """What one sender signs, with which keys, and where it puts the signature."""

    keys: Macs | PublicKeys
    template: tuple[bytes | str, ...]
    """What is signed: bytes as they are, and words."""
    header: str
    value: str | None
    """The name of the pairs that are signatures; None if the whole header is one."""
    timestamp: str | None
    """The name of the pair that is the time."""
    timestamp_header: str | None
    id_header: str | None

    @property
    def signed_headers(self) -> frozenset[str]:
        return frozenset(one for one in (self.timestamp_header, self.id_header) if one)

    def envelope(self, headers: Mapping[str, str]) -> Envelope:
        """What the headers say. Raises InvalidSignatureError."""
        given = headers.get(self.header)
        if given is None:
            raise InvalidSignatureError(f"there is no {self.header} header")
        if self.value is None:
            return Envelope((given,), self._timestamp(headers, []), self.signed_id(headers))
        pairs = list(_pairs(given))
        signatures = tuple(value for name, value in pairs if name == self.value)
        return Envelope(signatures, self._timestamp(headers, pairs), self.signed_id(headers))

    def signed_id(self, headers: Mapping[str, str]) -> str | None:
        """The id that is signed, None if none is. Raises InvalidSignatureError."""
        if self.id_header is None:
            return None
        given = headers.get(self.id_header, "")
        if not _ID.fullmatch(given):
            raise InvalidSignatureError(f"the header {self.id_header} is missing, or no id")
        return given

    def proves(self, envelope: Envelope, body: bytes) -> bool:
        """Whether one of the signatures is the sender's."""
        return self.keys.prove(envelope.signatures, self._signed(envelope, body))

    def sealed(self, body: bytes, event_id: str | None, sent_at: datetime) -> dict[str, str]:
        """The headers that make a delivery of the body authentic.

        Raises ConfigurationError when the source has public keys.
        """
        timestamp, signed_id = str(int(sent_at.timestamp())), event_id or uuid4().hex
        signature = self.keys.sign(self._signed(Envelope((), timestamp, signed_id), body))
        if self.value is not None:
            signature = f"{self.value}={signature}"
        if self.timestamp is not None:
            signature = f"{self.timestamp}={timestamp};{signature}"
        found = {
            self.header: signature,
            self.timestamp_header: timestamp,
            self.id_header: signed_id,
        }
        return {name: value for name, value in found.items() if name is not None}

    def _signed(self, envelope: Envelope, body: bytes) -> bytes:
        values = {
            "body": body,
            "timestamp": (envelope.timestamp or "").encode(),
            "id": (envelope.id or "").encode(),
        }
        return b"".join(one if isinstance(one, bytes) else values[one] for one in self.template)

    def _timestamp(self, headers: Mapping[str, str], pairs: list[tuple[str, str]]) -> str | None:
        if self.timestamp is None and self.timestamp_header is None:
            return None
        found = [value for name, value in pairs if name == self.timestamp]
        if self.timestamp_header is not None:
            found = [headers.get(self.timestamp_header, "")]
        if len(found) != 1 or not _TIMESTAMP.fullmatch(found[0]):
            raise InvalidSignatureError("the time that is signed is missing, or no count")
        return found[0]


def configured_scheme(setup: Setup) -> Scheme:
    """The scheme in a source's table `signature`. Raises ConfigurationError."""
    table = setup.options.get("signature")
    if not isinstance(table, Mapping):
        raise ConfigurationError(
            f"{setup.key}.signature: is needed, a table [{setup.key}.signature] with header = "
            f'"X-Signature" and what else there is to say'
        )
    signature = Setup(f"{setup.key}.signature", options=_with_event_id(table, setup.options))
    signature.refuse_options_but(OPTIONS)
    header = _header(signature, "header", "X-Signature")
    if header is None:
        raise ConfigurationError(f"{signature.key}.header: is needed, such as 'X-Signature'")
    value = _value(signature)
    is_pair = value is not None and not _names_header(signature.options.get("timestamp", HEADER))
    return Scheme(
        keys=configured_keys(setup, signature),
        template=_template(signature),
        header=header,
        value=value,
        timestamp=signature.needed_text("timestamp", "ts") if is_pair else None,
        timestamp_header=None if is_pair else _header(signature, "timestamp", "X-Timestamp"),
        id_header=_header(signature, "id", "X-Event-Id"),
    )


def _with_event_id(table: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event's id in a header is what `{id}` stands for, unless the table says otherwise."""
    fields = options.get("fields")
    event_id = fields.get("event_id") if isinstance(fields, Mapping) else None
    is_signed = "{id}" in str(table.get("signed"))
    if "id" in table or not is_signed or not _names_header(event_id):
        return table
    return {**table, "id": event_id}


def _names_header(place: Any) -> bool:
    return isinstance(place, str) and place.startswith(HEADER)


def _value(signature: Setup) -> str | None:
    """The name of the pairs that are signatures, None if there are no pairs."""
    has_pairs = signature.options.get("pairs", False)
    if not isinstance(has_pairs, bool):
        raise ConfigurationError(f"{signature.key}.pairs = {has_pairs!r}: write true or false")
    if has_pairs:
        return signature.needed_text("value", "h1")
    if "value" in signature.options:
        raise ConfigurationError(
            f"{signature.key}.value = {signature.options['value']!r}: names a pair of the header; "
            f"write pairs = true, or remove it"
        )
    return None


def _template(signature: Setup) -> tuple[bytes | str, ...]:
    text = signature.options.get("signed", "{body}")
    key = f"{signature.key}.signed"
    if not isinstance(text, str):
        raise ConfigurationError(f'{key} = {text!r}: write it as text, such as "{{body}}"')
    parts = _WORD.split(text)
    literals, words = parts[::2], parts[1::2]
    _check_words(key, text, literals, words)
    for word in WORDS[1:]:
        _check_place(signature, text, word, word in words)
    url = _url(signature)
    return tuple(_part(part, bool(index % 2), url) for index, part in enumerate(parts) if part)


def _part(part: str, is_word: bool, url: str) -> bytes | str:
    if not is_word:
        return part.encode()
    return url.encode() if part == "url" else part


def _check_words(key: str, text: str, literals: list[str], words: list[str]) -> None:
    unknown = next((word for word in words if word not in WORDS), None)
    if unknown is not None:
        known = " ".join(f"{{{word}}}" for word in WORDS)
        raise ConfigurationError(f"{key} = {text!r}: there is no {{{unknown}}}; known are {known}")
    if any(brace in literal for literal in literals for brace in "{}"):
        raise ConfigurationError(f"{key} = {text!r}: a brace that is not one of a word")
    if words.count("body") != 1 or len(set(words)) != len(words):
        raise ConfigurationError(
            f"{key} = {text!r}: write {{body}} once, or else it is not signed, and no word twice"
        )
    for between, *pair in zip(literals[1:], words, words[1:], strict=False):
        if {*pair} == {"id", "timestamp"} and _DIGITS_AT_MOST.fullmatch(between):
            raise ConfigurationError(
                f"{key} = {text!r}: nobody can tell where the time begins; "
                f'put something between the two, such as "."'
            )


def _check_place(signature: Setup, text: str, word: str, is_signed: bool) -> None:
    """What is signed has a place where it is found, and what has a place is signed."""
    given = signature.options.get(word)
    if is_signed and given is None:
        raise ConfigurationError(
            f"{signature.key}.{word}: is needed, because {{{word}}} is signed; say where it is"
        )
    if given is not None and not is_signed:
        raise ConfigurationError(
            f"{signature.key}.{word} = {given!r}: is not signed; write {{{word}}} where it stands "
            f"in signed = {text!r}, or remove it"
        )


def _url(signature: Setup) -> str:
    if "url" not in signature.options:
        return ""
    url = signature.needed_text("url", "https://example.com/webhooks/shop")
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(
            f"{signature.key}.url = {url!r}: write the whole address to which the sender delivers, "
            f"as it is written at the sender's"
        )
    return url


def _header(signature: Setup, option: str, example: str) -> str | None:
    """The name of a header in lower case, None if it is not given."""
    if option not in signature.options:
        return None
    named = signature.needed_text(option, example)
    try:
        return header_name(named.removeprefix(HEADER))
    except ValueError as error:
        raise ConfigurationError(
            f"{signature.key}.{option} = {named!r}: {error}; write it such as {example!r}"
        ) from None


def _pairs(header: str) -> Iterator[tuple[str, str]]:
    for one in _SEPARATOR.split(header, MAX_PAIRS)[:MAX_PAIRS]:
        name, _, value = one.strip().partition("=")
        yield name, value
