"""Pages over HTTP: one module for each part of the menu. Rights stand on the routes and are enforced in `access`."""
