"""The HTTP surface: one module a resource."""
