"""The real scheduler and prefix cache, a simulated engine, and virtual time: what a server would do, in a fraction of the time.

Knows the server's scheduling and the simulated engines; sends nothing over any wire. docs/scheduling.md shows it at work.
"""
