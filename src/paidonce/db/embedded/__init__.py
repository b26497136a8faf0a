"""The embedded PostgreSQL server."""
