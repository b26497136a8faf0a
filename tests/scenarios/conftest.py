"""A merchant with four gateways."""

import pytest

from tests.scenarios.merchant import Merchant
from tests.support.servers import Shared


@pytest.fixture(scope="module")
def merchant(shared: Shared) -> Merchant:
    """The merchant of the module's shared server."""
    return Merchant(shared)
