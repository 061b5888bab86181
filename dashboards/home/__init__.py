"""The start page, the files that pages load, and the place of batch jobs."""
