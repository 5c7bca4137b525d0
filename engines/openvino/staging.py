"""The inputs of a step, in buffers allocated once for the greatest step and shared with the library.

A step writes the front of each buffer and tells its tensor the new length: no allocation, no tensor made, no copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from engines.contract import RunnerLimits
from engines.openvino.graph import WANTED
from engines.openvino.layout import StepLayout


class _Input:
    """One input vector; ``data`` and the tensor are the same memory."""

    def __init__(self, request: ov.InferRequest, name: str, capacity: int, dtype: npt.DTypeLike) -> None:
        self.data = np.zeros(capacity, dtype)
        self._tensor = ov.Tensor(self.data, shared_memory=True)
        request.set_tensor(name, self._tensor)

    def put(self, values: npt.NDArray[Any]) -> None:
        length = values.shape[0]
        self.data[:length] = values
        self._tensor.shape = (length,)


class StepInputs:
    """Writes layouts into a request's inputs. Not while the request runs."""

    def __init__(self, request: ov.InferRequest, limits: RunnerLimits) -> None:
        rows, tokens = limits.max_rows, limits.max_step_tokens
        blocks = rows * -(-limits.max_context // limits.block_size)
        self._tokens = _Input(request, "input_ids", tokens, np.int64)
        self._positions = _Input(request, "position_ids", tokens, np.int64)
        self._past = _Input(request, "past_lens", rows, np.int32)
        self._begins = _Input(request, "subsequence_begins", rows + 1, np.int32)
        self._table = _Input(request, "block_indices", blocks, np.int32)
        self._table_begins = _Input(request, "block_indices_begins", rows + 1, np.int32)
        self._wanted = _Input(request, WANTED, tokens, np.int64)
        self._longest = np.zeros((), np.int32)
        self._longest_tensor = ov.Tensor(self._longest, shared_memory=True)
        request.set_tensor("max_context_len", self._longest_tensor)
        self._places = np.arange(tokens)

    def stage(self, layout: StepLayout) -> None:
        """At least one row."""
        new = np.diff(layout.begins)
        first_positions = layout.past - layout.begins[:-1]
        self._tokens.put(layout.tokens)
        self._positions.put(np.repeat(first_positions, new) + self._places[: layout.tokens.shape[0]])
        self._past.put(layout.past)
        self._begins.put(layout.begins)
        self._table.put(layout.table)
        self._table_begins.put(layout.table_begins)
        self._wanted.put(layout.wanted)
        self._longest[()] = (layout.past + new).max()
