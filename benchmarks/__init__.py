"""Compare Paidonce with hand-written handlers, on one PostgreSQL server, in one run."""
