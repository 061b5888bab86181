"""What Alembic runs: the connection comes from `proxy.db.upgrade`, which owns the transaction."""

from alembic import context

from proxy.db import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter a table in place; Alembic then copies it.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
