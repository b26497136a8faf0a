"""How Alembic reaches the database: on the connection that `schema.migrate` hands over.

Offline (`alembic upgrade --sql`), it writes the SQL for a DBA to read and run.
"""

from alembic import context

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True)
else:
    context.configure(
        connection=context.config.attributes["connection"], transaction_per_migration=True
    )

with context.begin_transaction():
    context.run_migrations()
