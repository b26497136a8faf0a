"""JSON Schemas (draft 2020-12) of the bodies of all message types.

The files are part of the package. Fields may be added at any time; readers have to ignore unknown
ones.
"""

import json
from importlib.resources import files
from typing import Any, Final

VERSION: Final = 1
"""The version of all schemas. It grows with incompatible changes."""


def schema_id(type_: str) -> str:
    """The `$id` of the schema of a type: the CloudEvents attribute `dataschema`."""
    return f"urn:paidonce:event:{type_}:{VERSION}"


def schemas() -> dict[str, Any]:
    """All schemas by message type."""
    found = (one for one in files(__name__).iterdir() if one.name.endswith(".json"))
    return {one.name.removesuffix(".json"): json.loads(one.read_text("utf-8")) for one in found}
