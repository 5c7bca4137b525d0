"""How long answers turn out, learned per tenant and class, so that the room can tell short work from long."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from itertools import accumulate
from math import log2

from server.engine import GenerationRequest, PriorityClass

_PER_OCTAVE = 4
"""Buckets for each doubling: a quantile is right within 19 %."""
_BUCKETS = 20 * _PER_OCTAVE
_ENOUGH = 8
"""Answers after which a tenant's own record counts; before that the class's does."""
_MEMORY = 512
"""Answers after which all counts are halved, so that the sketch follows the traffic."""
_MAX_TENANTS = 4096


class LengthSketch:
    """A histogram over logarithmic buckets: a quantile with a bounded relative error in a fixed amount of memory
    (the idea of Masson, Rim, Lee, DDSketch, 2019)."""

    __slots__ = ("_counts", "_quantile", "_running", "count", "typical")

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._counts = [0.0] * _BUCKETS
        self.count = 0.0
        self.typical = 0.0
        """The quantile in tokens, after the last observation."""
        self._running: tuple[float, ...] = (0.0,) * (_BUCKETS + 1)
        """Running sums of the counts, replaced as a whole."""

    def add(self, tokens: int) -> None:
        """O(buckets), once a request."""
        self._counts[_bucket(tokens)] += 1.0
        self.count += 1.0
        if self.count >= _MEMORY:
            self._counts = [count / 2 for count in self._counts]
            self.count /= 2
        self._running = (0.0, *accumulate(self._counts))
        self.typical = self.beyond(0)

    def beyond(self, tokens: float) -> float:
        """The quantile of those that turned out to be no shorter than so many tokens; 0 where none was. O(log buckets). Any thread."""
        running, first = self._running, _bucket(tokens)
        shorter, longer = running[first], running[-1] - running[first]
        if longer <= 0.0:
            return 0.0
        return _middle(bisect_left(running, shorter + self._quantile * longer, first + 1) - 1)


def _bucket(tokens: float) -> int:
    return min(_BUCKETS - 1, int(log2(max(1, tokens)) * _PER_OCTAVE))


def _middle(bucket: int) -> float:
    return float(2.0 ** ((bucket + 0.5) / _PER_OCTAVE))


class ExpectedLengths:
    """Expected output tokens of a request, never above its max_tokens. The least recently seen tenants are forgotten beyond
    a few thousand. Written on the engine's thread, asked on any."""

    __slots__ = ("_classes", "_quantile", "_tenants")

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._classes = [LengthSketch(quantile) for _ in PriorityClass]
        self._tenants: OrderedDict[tuple[str, int], LengthSketch] = OrderedDict()

    def expect(self, request: GenerationRequest) -> float:
        """Output tokens of each of its sequences; max_tokens where nothing is known yet."""
        sketch = self._sketch(request)
        if sketch.count < _ENOUGH:
            return float(request.max_tokens)
        return min(float(request.max_tokens), sketch.typical)

    @property
    def known(self) -> bool:
        """Whether enough answers were seen to say how long one goes on. Any thread."""
        return any(sketch.count >= _ENOUGH for sketch in self._classes)

    def rest(self, request: GenerationRequest, generated: int) -> float:
        """Tokens that one of its sequences will probably still draw after so many. Any thread."""
        sketch, most = self._sketch(request), float(max(1, request.max_tokens - generated))
        if sketch.count < _ENOUGH:
            return most
        whole = sketch.beyond(generated)
        # None so far went on for so long: it may end at any moment, or not.
        return min(most, max(1.0, whole - generated)) if whole else max(1.0, most / 2)

    def _sketch(self, request: GenerationRequest) -> LengthSketch:
        sketch = self._tenants.get((request.tenant, request.priority))
        if sketch is None or sketch.count < _ENOUGH:
            sketch = self._classes[request.priority]
        return sketch

    def observe(self, request: GenerationRequest, tokens: int) -> None:
        """An answer of the request's ended by itself, or for its length, after so many tokens."""
        key = (request.tenant, int(request.priority))
        sketch = self._tenants.get(key)
        if sketch is None:
            sketch = self._tenants[key] = LengthSketch(self._quantile)
            if len(self._tenants) > _MAX_TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(key)
        sketch.add(tokens)
        self._classes[request.priority].add(tokens)
