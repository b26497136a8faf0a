"""Deliveries of each gateway, built without the providers' code: one module each, with `CASES`."""

import pkgutil
from importlib import import_module
from typing import Final

from tests.providers.conformance import Case

CASES: Final[list[Case]] = [
    case
    for module in sorted(one.name for one in pkgutil.iter_modules(__path__))
    for case in import_module(f"{__name__}.{module}").CASES
]
