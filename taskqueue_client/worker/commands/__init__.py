"""Commands of a task: subprocesses, their environment, log and work directory."""
