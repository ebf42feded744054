"""A job's life: submit, start, stop, recover, retry, delete; the document others read."""
