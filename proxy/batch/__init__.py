"""The batch tier: files of requests, answered line by line until a deadline, and the files of their answers.

Example: `store.create(NewBatch(…))` queues a batch; a `BatchRunner` in any process validates it, asks the pipeline for
each line's answer, and `write_files` writes the output.
"""
