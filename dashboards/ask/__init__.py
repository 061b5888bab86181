"""Ask: a question in words about spend and requests, answered with links to the rows."""
