"""Alembic's environment: the connection comes from `gateway.database.upgrade`, which owns the transaction."""

from alembic import context

from gateway.database import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter a table in place; Alembic then copies it.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
