"""When two e-mail addresses are the same one."""

import unicodedata
from typing import Final

MAX_EMAIL: Final = 254
"""The longest address that SMTP can carry."""


def email_key(email: str) -> str:
    """How addresses are compared: NFC, lower case, no blanks around them. Nothing cleverer.

    Lower case and not casefold: casefold would take straße@ and strasse@ for one address.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", email.strip()).lower())


def is_email(text: str) -> bool:
    """Whether the text can be an address at all: something, an @, something, no blanks."""
    local, at, domain = text.rpartition("@")
    printable = text.isprintable() and not any(letter.isspace() for letter in text)
    return bool(local and at and domain) and printable and len(text) <= MAX_EMAIL


def masked(email: str) -> str:
    """What a log may show of an address: a***@example.com."""
    local, _, domain = email.rpartition("@")
    return f"{local[:1]}***@{domain}" if local else "***"
