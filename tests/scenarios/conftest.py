"""A merchant with four gateways, and a server that all tests of one module share."""

import pytest

from tests.flow.conftest import Shared, shared, shared_database
from tests.scenarios.merchant import Merchant

__all__ = ["merchant", "shared", "shared_database"]


@pytest.fixture(scope="module")
def merchant(shared: Shared) -> Merchant:
    """The merchant of the module's shared server."""
    return Merchant(shared)
