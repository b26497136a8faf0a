"""The alerts that are shipped ask for numbers that there are."""

import re
from pathlib import Path
from typing import Final

from paidonce.telemetry import metrics

RULES: Final = Path(__file__).parents[2] / "examples/prometheus/bus.rules.yml"
GAUGES: Final = {one.name for one in vars(metrics).values() if isinstance(one, metrics.Measure)}


def test_every_alert_asks_for_gauges_that_are_measured() -> None:
    """OBS-3: gauges, because a counter that is new has not grown."""
    rules = re.findall(
        r"- alert: (\w+)\n\s+expr: (.*?)\n +(?:for|labels):", RULES.read_text(), re.S
    )
    asked = {
        name: set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", re.sub(r"by \(.*?\)", "", expression)))
        for name, expression in rules
    }
    assert asked == {
        "PaidonceNotPublished": {"bus_unpublished_oldest_seconds"},
        "PaidonceGroupFallsBehind": {"bus_lag"},
        "PaidonceGroupNotSeen": {"bus_inactive_seconds"},
        "PaidonceDeadMessages": {"bus_dead_letters"},
        "PaidonceWalletPaymentsInReview": {"wallet_payments_review"},
        "PaidonceCallbacksGivenUp": {"gateway_callbacks_dead"},
        "PaidonceClockDiffers": {"clock_skew_seconds"},
    }
    assert set().union(*asked.values()) <= GAUGES
