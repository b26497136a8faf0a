"""Everything that touches PostgreSQL. SQL lives in the .sql file beside the module that runs it."""
