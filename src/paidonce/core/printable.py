"""Text from outside as it may be shown: what a terminal or a browser would obey is escaped (SEC-9).

Escaped are control characters, invisible ones that change the direction or the meaning of what
stands beside them, line separators and lone surrogates.
"""

import unicodedata
from typing import Final

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: control, format, surrogate, line separator, paragraph separator."""
_DEL: Final = b"\x7f"


def printable(text: str, keep: str = "") -> str:
    r"""The text with escapes such as `\x1b` and `\u202e`. Characters of `keep` stay."""
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode() if _is_hidden(one) and one not in keep else one
        for one in text
    )


def printable_json(text: bytes) -> bytes:
    r"""JSON with the same meaning, in which such characters are escaped as `\uXXXX`.

    Line breaks stay: outside of strings they are white space, inside JSON has none.
    """
    if text.isascii() and _DEL not in text:
        return text
    return "".join(
        _json_escape(one) if _is_hidden(one) and one != "\n" else one for one in text.decode()
    ).encode()


def _is_hidden(character: str) -> bool:
    return not character.isprintable() and unicodedata.category(character) in _HIDDEN


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
