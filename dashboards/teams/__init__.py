"""Teams: the list, the overview with its figures, and how teams are changed."""
