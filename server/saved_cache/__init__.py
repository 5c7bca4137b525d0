"""The prefix cache on disk: written at shutdown and now and then before, read back at start. docs/prefix-cache.md explains it."""
