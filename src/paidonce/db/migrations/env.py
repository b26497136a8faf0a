"""How Alembic reaches the database: on the connection that `schema.migrate` hands over.

Offline (`alembic upgrade --sql`), it writes the SQL for a DBA to read and run.
"""

from alembic import context

from paidonce.db.queries import SCHEMA

schema = context.config.attributes.get("schema", SCHEMA)
if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True, version_table_schema=schema)
else:
    context.configure(
        connection=context.config.attributes["connection"],
        transaction_per_migration=True,
        version_table_schema=schema,
    )

with context.begin_transaction():
    if context.is_offline_mode():
        context.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    context.run_migrations()
