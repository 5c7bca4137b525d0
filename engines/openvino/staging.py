"""The inputs of a step, in buffers allocated once for the greatest step and shared with the library.

A step writes the front of each buffer and tells its tensor the new length: no allocation, no tensor made.
"""

from __future__ import annotations

from array import array

import numpy as np
import openvino as ov

from engines.contract import RunnerLimits
from engines.openvino.graph import WANTED
from engines.openvino.layout import StepLayout

_DTYPES = {"i": np.int32, "q": np.int64}


class _Input:
    """One input vector; the buffer and the tensor are the same memory."""

    __slots__ = ("_buffer", "_length", "_tensor")

    def __init__(self, request: ov.InferRequest, name: str, capacity: int, typecode: str) -> None:
        memory = array(typecode, bytes(capacity * array(typecode).itemsize))
        self._buffer = memoryview(memory)
        self._length = capacity
        self._tensor = ov.Tensor(np.frombuffer(memory, _DTYPES[typecode]), shared_memory=True)
        request.set_tensor(name, self._tensor)

    def put(self, values: array[int]) -> None:
        length = len(values)
        with memoryview(values) as source:
            self._buffer[:length] = source
        if length != self._length:
            self._tensor.shape = (length,)
            self._length = length


class StepInputs:
    """Writes layouts into a request's inputs. Not while the request runs."""

    def __init__(self, request: ov.InferRequest, limits: RunnerLimits) -> None:
        rows, tokens = limits.max_rows, limits.max_step_tokens
        entries = rows * -(-limits.max_context // limits.block_size)
        self._tokens = _Input(request, "input_ids", tokens, "q")
        self._positions = _Input(request, "position_ids", tokens, "q")
        self._past = _Input(request, "past_lens", rows, "i")
        self._begins = _Input(request, "subsequence_begins", rows + 1, "i")
        self._table = _Input(request, "block_indices", entries, "i")
        self._table_begins = _Input(request, "block_indices_begins", rows + 1, "i")
        self._wanted = _Input(request, WANTED, tokens, "q")
        self._longest = np.zeros((), np.int32)
        self._longest_tensor = ov.Tensor(self._longest, shared_memory=True)
        request.set_tensor("max_context_len", self._longest_tensor)

    def stage(self, layout: StepLayout) -> None:
        """At least one row."""
        self._tokens.put(layout.tokens)
        self._positions.put(layout.positions)
        self._past.put(layout.past)
        self._begins.put(layout.begins)
        self._table.put(layout.table)
        self._table_begins.put(layout.table_begins)
        self._wanted.put(layout.wanted)
        self._longest[()] = max(layout.contexts)
