"""The life of a request between its arrival and its last event: waiting room, in-flight batcher, feed of an executor.

Pure: times are passed in, nothing here knows a clock, a socket, a thread or a tensor.
"""
