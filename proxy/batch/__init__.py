"""The batch tier: files of requests, answered line by line until a deadline, and the files of their answers."""
