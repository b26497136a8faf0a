"""Paidonce beside a hand-written handler, on one PostgreSQL server, in one run."""
