"""Tables and sections of docs/benchmarks.md."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

TITLE = "# Benchmarks"


def markdown_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, texts: Sequence[str]
) -> str:
    """A table. Columns hold numbers, except for those named in texts."""
    rules = ["---" if column in texts else "---:" for column in columns]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rules, *rows))


def markdown_list(facts: dict[str, str]) -> str:
    """A list of named facts."""
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def write_section(path: Path, name: str, parts: Iterable[str]) -> None:
    """Replace the text between the markers of this name, and keep the rest of the file."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = path.read_text() if path.exists() else TITLE
    if begin not in text or end not in text:
        text = f"{text.rstrip()}\n\n{begin}\n{end}\n"
    section = "\n\n".join([begin, *parts, end])
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pattern.sub(lambda _: section, text, count=1))
