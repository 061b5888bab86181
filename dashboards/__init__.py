"""Pages for people: templates, tables, charts and words. They know figures, not requests."""
