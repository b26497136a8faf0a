"""What a search, the statistics and the metrics take with many events: make bench ARGS=--search."""
