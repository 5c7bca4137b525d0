"""The memory that logits come out into, ours, so that reading them asks nothing of the library."""

from __future__ import annotations

import numpy as np
import openvino as ov

from engines.sampling.thresholds import Logits


class LogitRows:
    """Room for the rows of an ordinary step. A step that wants more gets memory of its own, given back at the next step."""

    def __init__(self, request: ov.InferRequest, ordinary_rows: int, vocab_size: int) -> None:
        self._request = request
        self._vocab_size = vocab_size
        self._ordinary = self._room(ordinary_rows)
        self._in_use = self._ordinary
        self._count = ordinary_rows
        request.set_output_tensor(0, self._ordinary[1])

    def _room(self, rows: int) -> tuple[Logits, ov.Tensor]:
        memory = np.empty((rows, 1, self._vocab_size), np.float32)
        return memory.reshape(rows, self._vocab_size), ov.Tensor(memory, shared_memory=True)

    def expect(self, count: int) -> None:
        """Before a step that wants ``count`` rows."""
        fits = count <= self._ordinary[0].shape[0]
        room = self._ordinary if fits else self._room(count)
        if room is not self._in_use:
            self._request.set_output_tensor(0, room[1])
            self._in_use = room
        if count != self._count:
            room[1].shape = (count, 1, self._vocab_size)
        self._count = count

    def rows(self) -> Logits:
        """[rows expected, vocabulary]; the next step overwrites them."""
        return self._in_use[0][: self._count]
