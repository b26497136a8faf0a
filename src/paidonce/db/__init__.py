"""PostgreSQL: pool, named queries, migrations, embedded server."""
