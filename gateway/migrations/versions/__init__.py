"""One module a step, named after what it adds."""
