"""What the services' tests share with those of the store."""

from tests.flow.conftest import shared_database
from tests.store.conftest import _logging, module_database, shop

__all__ = ["_logging", "module_database", "shared_database", "shop"]
