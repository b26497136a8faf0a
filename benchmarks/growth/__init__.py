"""How the cost of receiving and claiming grows with the tables: `make bench ARGS=--grow`."""
