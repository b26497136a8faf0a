"""How the cost of receiving and of claiming grows with the tables: make bench ARGS=--grow."""
