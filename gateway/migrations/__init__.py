"""The schema's migrations. `gateway.database.migrate` runs them; `env.py` configures Alembic."""
