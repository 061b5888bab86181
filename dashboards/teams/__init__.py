"""Teams: the list, the overview with its figures, and changes of teams."""
