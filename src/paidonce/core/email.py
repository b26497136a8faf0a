"""E-mail addresses: comparing and masking."""

import re
import unicodedata
from typing import Final

MAX_EMAIL: Final = 254
"""The longest address that SMTP can carry."""

_ADDRESS: Final = re.compile(r"""(?:[^\s@<>()\[\]",:;\\]+|"[^\s"\\]+")@[^\s@<>()",:;\\]+""")
"""One address, without a name and without brackets; what is before the @ may be quoted."""
_ADDRESS_IN_TEXT: Final = re.compile(r"[^\s@<>\"'(),:;]+@[^\s@<>\"'(),:;]+")


def email_key(email: str) -> str:
    """The key by which addresses are compared: NFC, lower case, stripped.

    Not casefold: it would make straße@ and strasse@ the same address.
    """
    if email.isascii():
        return email.strip().lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", email.strip()).lower())


def is_email(text: str) -> bool:
    """Whether the text has the form of exactly one address, without a name or blanks."""
    return len(text) <= MAX_EMAIL and text.isprintable() and bool(_ADDRESS.fullmatch(text))


def mask_email(email: str) -> str:
    """The address as logs show it: a***@example.com."""
    local, _, domain = email.rpartition("@")
    return f"{local[:1]}***@{domain}" if local else "***"


def mask_emails(text: str) -> str:
    """The text with every address masked."""
    return _ADDRESS_IN_TEXT.sub(lambda found: mask_email(found[0]), text)
