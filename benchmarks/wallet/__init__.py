"""Reserve and commit, compared with a hand-written wallet: `make bench ARGS=--wallet`."""
