"""The start page, static files of pages, and the page of batch jobs."""
