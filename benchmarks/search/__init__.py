"""The time of searches, statistics and metrics with many events: `make bench ARGS=--search`."""
