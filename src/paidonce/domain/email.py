"""When two e-mail addresses are the same one."""

import re
import unicodedata
from typing import Final

MAX_EMAIL: Final = 254
"""The longest address that SMTP can carry."""

_ADDRESS: Final = re.compile(r"\S+@[^\s@]+")
_ADDRESS_IN_TEXT: Final = re.compile(r"[^\s@<>\"'(),:;]+@[^\s@<>\"'(),:;]+")


def email_key(email: str) -> str:
    """How addresses are compared: NFC, lower case, no blanks around them. Nothing cleverer.

    Lower case and not casefold: casefold would take straße@ and strasse@ for one address.
    """
    if email.isascii():
        return email.strip().lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", email.strip()).lower())


def is_email(text: str) -> bool:
    """Whether the text can be an address at all: something, an @, something, no blanks."""
    return len(text) <= MAX_EMAIL and text.isprintable() and bool(_ADDRESS.fullmatch(text))


def masked(email: str) -> str:
    """What a log may show of an address: a***@example.com."""
    local, _, domain = email.rpartition("@")
    return f"{local[:1]}***@{domain}" if local else "***"


def without_addresses(text: str) -> str:
    """The text with each address in it masked."""
    return _ADDRESS_IN_TEXT.sub(lambda found: masked(found[0]), text)
