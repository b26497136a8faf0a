"""What the body of each type of message holds, as JSON Schemas (draft 2020-12).

They lie beside this file, and are shipped with the program. Fields may be added to a body without
a word; whoever reads it passes over what he does not know.
"""

import json
from importlib.resources import files
from typing import Any, Final

VERSION: Final = 1
"""Of all of them. It grows when a reader of the old ones could be misled."""


def schema_id(type_: str) -> str:
    """The `$id` of the schema of a type, which CloudEvents call `dataschema`."""
    return f"urn:paidonce:event:{type_}:{VERSION}"


def schemas() -> dict[str, Any]:
    """Every schema by the type that it is of."""
    found = (one for one in files(__name__).iterdir() if one.name.endswith(".json"))
    return {one.name.removesuffix(".json"): json.loads(one.read_text("utf-8")) for one in found}
