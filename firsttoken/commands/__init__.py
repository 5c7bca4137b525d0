"""What the `firsttoken` command can do: one module a verb."""
