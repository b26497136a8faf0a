"""Masks card numbers, keys and secrets in texts that people read (SEC-7).

A `Masker` reads text as JSON or as a form where it looks like one, whole or broken, and otherwise
as it is. It changes nothing but what it hides:

- card numbers: 13 to 19 digits, a few blanks or signs between them, with the right check digit.
  A number that begins with 1 and has 13, 16 or 19 digits is a time in parts of a second, and no
  card; neither is a UUID. Signs that stand in lists and times, such as a comma or a colon, count
  only between groups as they are printed on cards;
- values whose name says that they are secret, such as `password` or `card_number`, and all that is
  within them;
- API keys of ours, and the secrets that the masker was given, wherever they stand.

E-mail addresses stay, except in a `line`, which may end in a log.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus

from paidonce.core.email import mask_email

HIDDEN: Final = "***"
MAX_DEPTH: Final = 4
"""How deep texts within texts are masked, such as JSON in a form parameter."""
MAX_SHOWN: Final = 64 * 1024
MARGIN: Final = 4_096
"""Read beyond that and not shown: a card number must not be cut before it is recognised."""
SHORTEST_CARD: Final = 13
LONGEST_CARD: Final = 19

_SEPARATOR: Final = (
    r"(?:[ \-._/+\x00\xa0\xc2\u2000-\u200b\u2010-\u2015\u202f\u2212\u3000]|%20|%2[DdEe]"
    # Blanks and hyphens of U+20.. as bytes of UTF-8 and of UTF-16, each read as Latin-1.
    r"|\xe2\x80[\x80-\xaf]|\x00[\x01-\x15] | [\x01-\x15]\x00)"
)
_LISTED: Final = re.compile(r"\d{3,6}(?:[\t\r\n,:*]{1,2} ?\d{3,6}){2,}")
_PRINTED: Final = frozenset({(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4)})
_ISSUERS: Final = frozenset((3, 4, 5, 6))
_UUID: Final = r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
_DIGITS: Final = re.compile(
    rf"(?P<uuid>{_UUID})|\d(?:{_SEPARATOR}{{0,7}}\d){{{SHORTEST_CARD - 1},}}"
)
_RUN: Final = b"0" * SHORTEST_CARD
_BETWEEN_DIGITS: Final = b" -._/+\x00\t\r\n,:*"
_TOO_LONG: Final = re.compile(rf"\d{{{LONGEST_CARD + 1},}}")
_DIGITS_ALIKE: Final = bytes(ord("0") if chr(byte).isdecimal() else 0 for byte in range(256))
_GROUP: Final = re.compile(r"\d+")
_IN_EMAIL: Final = r"[^\s\"'<>@,;:=&?()\[\]{}|\\]"
_EMAIL: Final = re.compile(f"{_IN_EMAIL}{{1,254}}@{_IN_EMAIL}{{1,254}}")
_API_KEY: Final = re.compile(r"po_[A-Za-z0-9_-]{17,}")
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_SIGNS: Final = frozenset("{}[],:")
_FORM: Final = re.compile(r"[^\s=&]+=")
_SECRET_NAMES: Final = re.compile(
    r"cardn(?:o|um)|accountnumber|cvv|cvc|cvn|securitycode|passw|passphrase|secret|token|"
    r"authorization|cookie|apikey|accesskey|private|credential|^pan$|^pin$|^pwd$|^auth$"
)


def is_secret_name(name: str) -> bool:
    """Whether values with this name are secret."""
    return bool(_SECRET_NAMES.search(re.sub(r"[^a-z0-9]", "", name.lower())))


class Masker:
    """Masks sensitive data, and these secrets."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        spelled = sorted({way for one in secrets for way in _spellings(one)}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, spelled))) if spelled else None
        self._known = tuple(secrets)

    def is_suspicious(self, text: str) -> bool:
        """Whether `line` might change the text. Fast: it is called for every event."""
        if not text.isascii() or "@" in text or "%" in text or "po_" in text:
            return True
        for secret in self._known:
            if secret in text:
                return True
        return _has_run(text) and _has_run(_TOO_LONG.sub("x", text))

    def line(self, text: str) -> str:
        """Mask a log line or a response, with its e-mail addresses."""
        plain = self._plain(text)
        return _EMAIL.sub(lambda found: mask_email(found[0]), plain) if "@" in plain else plain

    def text(self, text: str, depth: int = 0) -> str:
        if depth < MAX_DEPTH:
            start = text.lstrip()[:1]
            if start in ("{", "["):
                text = self._json(text, depth)
            elif _FORM.match(text):
                text = self._form(text, depth)
        return self._plain(text)

    def field(self, name: str, value: str) -> str:
        """Mask the value of a header."""
        return HIDDEN if is_secret_name(name) else self.text(value)

    def body(self, body: bytes) -> str | bytes:
        """Mask a body: as text if it is text, otherwise as bytes.

        Of one that is too long, the beginning: MAX_SHOWN characters or bytes.
        """
        is_cut = len(body) > MAX_SHOWN
        head = body[: MAX_SHOWN + MARGIN] if is_cut else body
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(head, final=not is_cut)
        except UnicodeDecodeError:
            # Digits and names have the same bytes in every charset that gateways use.
            masked = self.text(head.decode("latin-1")).encode("latin-1", "backslashreplace")
            return masked[:-MARGIN][:MAX_SHOWN] if is_cut else masked
        shown = self.text(text)
        return shown[:-MARGIN][:MAX_SHOWN] if is_cut else shown

    def _plain(self, text: str) -> str:
        if self._secrets is not None:
            text = self._secrets.sub(HIDDEN, text)
        text = _DIGITS.sub(_without_cards, _API_KEY.sub(HIDDEN, text))
        return _LISTED.sub(_without_listed_cards, text)

    def _json(self, text: str, depth: int) -> str:
        """Token by token, so that invalid JSON is masked, too."""
        parts: list[str] = []
        end = 0
        for is_hidden, token in _tokens(text):
            parts.append(text[end : token.start()])
            parts.append(f'"{HIDDEN}"' if is_hidden else self._scalar(token[0], depth))
            end = token.end()
        return "".join([*parts, text[end:]])

    def _scalar(self, token: str, depth: int) -> str:
        if not token.startswith('"'):
            return token
        try:
            text = json.loads(token, strict=False)
        except ValueError:
            return token
        shown = self.text(text, depth + 1)
        return token if shown == text else json.dumps(shown)

    def _form(self, text: str, depth: int) -> str:
        return "&".join(self._pair(pair, depth) for pair in text.split("&"))

    def _pair(self, pair: str, depth: int) -> str:
        name, equals, value = pair.partition("=")
        named = unquote_plus(name)
        if self._plain(named) != named:
            name = HIDDEN
        if is_secret_name(named):
            return f"{name}{equals}{HIDDEN}"
        text = unquote_plus(value, errors="surrogateescape")
        shown = self.text(text, depth + 1)
        if shown == text:
            return pair
        return f"{name}{equals}{quote_plus(shown, safe='*', errors='surrogateescape')}"


def _tokens(text: str) -> Iterator[tuple[bool, re.Match[str]]]:
    """The tokens of JSON, each with whether it is a value with a secret name."""
    depth, hidden_at = 0, 0  # how deep we are, and within what is hidden as a whole
    is_value, name = False, ""
    for token in _JSON_TOKEN.finditer(text):
        sign = token[0]
        is_secret = is_value and is_secret_name(name)
        is_scalar = sign not in _SIGNS
        yield is_scalar and (is_secret or hidden_at > 0), token
        if sign in ("{", "["):
            depth += 1
            hidden_at = depth if is_secret and not hidden_at else hidden_at
        elif sign in ("}", "]"):
            hidden_at = 0 if depth <= hidden_at else hidden_at
            depth -= 1
        elif is_scalar:
            name = _name(sign)
        is_value = sign == ":"


def _name(token: str) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token


def _has_run(text: str) -> bool:
    """Whether there are as many digits as in a card number, whatever separates them."""
    return _RUN in text.encode().translate(_DIGITS_ALIKE, _BETWEEN_DIGITS)


def _without_cards(found: re.Match[str]) -> str:
    """Digits and separators, with the groups masked that form a card number."""
    return found[0] if found["uuid"] else _mask_groups(found[0], lambda _: True)


def _without_listed_cards(found: re.Match[str]) -> str:
    """The same in a list, where only the usual grouping of a card counts."""
    return _mask_groups(found[0], _is_printed_like_a_card)


def _is_printed_like_a_card(groups: list[str]) -> bool:
    return tuple(map(len, groups)) in _PRINTED and int(groups[0][0]) in _ISSUERS


def _mask_groups(text: str, is_card: Callable[[list[str]], bool]) -> str:
    """The text with the groups of digits masked that may be a card number."""
    groups = _GROUP.findall(text)
    hidden: set[int] = set()
    for first, last in _card_numbers(groups):
        if is_card(groups[first : last + 1]):
            hidden.update(range(first, last + 1))
    shown = (HIDDEN if number in hidden else group for number, group in enumerate(groups))
    return _GROUP.sub(lambda _: next(shown), text)


def _card_numbers(groups: list[str]) -> Iterator[tuple[int, int]]:
    """The first and the last of the groups of digits that may form a card number."""
    digits = [int(digit) for group in groups for digit in group]
    # Sums of the digits before each, every other one doubled: the even ones, or the odd ones.
    sums = [list(accumulate(_every_other_doubled(digits, odd), initial=0)) for odd in (0, 1)]
    starts = list(accumulate(map(len, groups), initial=0))
    for first in range(len(groups)):
        for last in range(first, len(groups)):
            begin, end = starts[first], starts[last + 1]
            if end - begin > LONGEST_CARD:
                break
            luhn = sums[end % 2]
            if (luhn[end] - luhn[begin]) % 10 == 0 and _is_card_like(digits[begin], end - begin):
                yield first, last


def _is_card_like(first_digit: int, length: int) -> bool:
    return length >= SHORTEST_CARD and not (first_digit == 1 and length in (13, 16, 19))


def _every_other_doubled(digits: list[int], odd: int) -> list[int]:
    """A doubled digit of the Luhn check: the sum of its digits."""
    return [
        (digit * 2 - 9 if digit > 4 else digit * 2) if place % 2 == odd else digit
        for place, digit in enumerate(digits)
    ]


def _spellings(secret: str) -> set[str]:
    """A secret as plain text, in a URL, in a form, and in JSON."""
    ways = {secret, quote(secret, safe=""), quote_plus(secret), quote(secret)}
    ways |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {one for one in ways if one.strip()}
