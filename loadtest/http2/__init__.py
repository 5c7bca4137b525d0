"""A gRPC client for measuring: HTTP/2 read straight off the socket, so that a message costs microseconds, not tens of them.

A general gRPC library spends 30 to 40 µs of Python on each message of a stream; a load generator built on it measures itself.
This one does only what a load generator needs: no retries, no name resolution, no balancing, no compression.
"""
