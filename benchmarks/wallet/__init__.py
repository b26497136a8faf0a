"""Reserve and commit beside the same written by hand: make bench ARGS=--wallet."""
