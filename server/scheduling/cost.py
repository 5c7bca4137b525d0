"""What a step costs: the server's own model, refitted online from the steps that it measures.

    seconds = fixed + a * new + b * decodes + c * sum(decode contexts) + d * sum(new * (past + new / 2))

It starts from the profile in the engine's manifest, or from a guess, and follows the machine: recursive least squares on relative
errors with forgetting, outliers held to a few times the usual error (Huber, Robust Estimation of a Location Parameter, 1964), and
coefficients that cannot become negative (coordinate descent; Franc, Hlaváč, Navara, Sequential Coordinate-wise Algorithm for the
Non-negative Least Squares Problem, 2005).
"""

from __future__ import annotations

from math import sqrt

from engines.manifest import StepProfile

_TERMS = 5
_FORGET = 0.998
"""What a step counts after the next one: about 500 steps are remembered."""
_REFIT_EVERY = 32
"""Steps; a fit takes about 60 µs, a step between two of them about 4 µs."""
_SWEEPS = 12
_OUTLIER = 3.0
"""Times the usual error at which a step's pull is capped."""
_TRUST = 0.05
"""How many steps the starting point weighs: just enough to keep terms that the traffic does not exercise where they were."""
_GUESS = (1e-2, 1e-4, 1e-4, 1e-7, 1e-9)


class StepCost:
    """Predicts and learns. Engine thread only; ``coefficients`` is replaced as a whole, so any thread may read it."""

    __slots__ = ("_matrix", "_scale", "_since_fit", "_vector", "_weights", "coefficients", "error", "predicted")

    def __init__(self, profile: StepProfile | None = None) -> None:
        self._scale = _GUESS if profile is None else _profiled(profile)
        self._weights = [1.0] * _TERMS
        self._matrix = [[0.0] * _TERMS for _ in range(_TERMS)]
        self._vector = [0.0] * _TERMS
        self._since_fit = 0
        self.coefficients: tuple[float, ...] = self._scale
        """fixed, a, b, c, d; seconds each."""
        self.error = 0.1
        """Usual relative error of a prediction."""
        self.predicted = 0.0
        """Seconds that the observed steps were predicted to take, each before it was learned from."""

    def seconds(self, new: int, decodes: int, context: float, attention: float) -> float:
        """Predicted seconds of a step."""
        fixed, a, b, c, d = self.coefficients
        return fixed + a * new + b * decodes + c * context + d * attention

    def prompt_seconds(self, tokens: int, past: int = 0) -> float:
        """What ``tokens`` of a prompt after ``past`` cost, beside what their steps cost anyway."""
        _, a, _, _, d = self.coefficients
        return a * tokens + d * tokens * (past + tokens / 2)

    def prompts_seconds(self, tokens: int, attention: float) -> float:
        """The same of prompts together; ``attention`` = sum(tokens * (past + tokens / 2))."""
        _, a, _, _, d = self.coefficients
        return a * tokens + d * attention

    def output_seconds(self, tokens: float, context: float) -> float:
        """What drawing ``tokens`` after ``context`` costs, beside what their steps cost anyway."""
        _, _, b, c, _ = self.coefficients
        return tokens * (b + c * (context + tokens / 2))

    def chunk(self, seconds: float, past: int) -> int:
        """The most tokens after ``past`` that cost no more than ``seconds``; 0 where none fits."""
        if seconds <= 0.0:
            return 0
        _, a, _, _, d = self.coefficients
        slope = a + d * past
        if d * seconds < 1e-6 * slope * slope:  # the quadratic term is lost in rounding
            return int(seconds / slope) if slope > 0.0 else 1 << 30
        return int((sqrt(slope * slope + 2.0 * d * seconds) - slope) / d)

    def observe(self, new: int, decodes: int, context: float, attention: float, seconds: float) -> None:
        """A step of this shape took ``seconds``."""
        if seconds <= 0.0:
            return
        predicted = self.seconds(new, decodes, context, attention)
        self.predicted += predicted
        miss = abs(1.0 - predicted / seconds)
        pull = min(1.0, _OUTLIER * self.error / miss) if miss > 0.0 else 1.0
        self.error += 0.02 * (min(miss, _OUTLIER * self.error) - self.error)
        self.error = max(self.error, 0.005)
        one, a, b, c, d = self._scale
        terms = (
            one / seconds,
            a * new / seconds,
            b * decodes / seconds,
            c * context / seconds,
            d * attention / seconds,
        )
        vector = self._vector
        for i, row in enumerate(self._matrix):
            term = pull * terms[i]
            vector[i] = _FORGET * vector[i] + term
            for j in range(_TERMS):
                row[j] = _FORGET * row[j] + term * terms[j]
        self._since_fit += 1
        if self._since_fit >= _REFIT_EVERY:
            self._since_fit = 0
            self._fit()

    def _fit(self) -> None:
        """Minimise the weighted squares plus trust * (weight - 1)^2 for each weight, all weights >= 0."""
        weights = self._weights
        for _ in range(_SWEEPS):
            for i, row in enumerate(self._matrix):
                rest = sum(row[j] * weights[j] for j in range(_TERMS)) - row[i] * weights[i]
                weights[i] = max(0.0, (self._vector[i] + _TRUST - rest) / (row[i] + _TRUST))
        self.coefficients = tuple(scale * weight for scale, weight in zip(self._scale, weights, strict=True))


def _profiled(profile: StepProfile) -> tuple[float, ...]:
    """The profile's coefficients; where one is 0 a hair above, so that the machine can teach otherwise."""
    found = (
        profile.fixed,
        profile.per_new_token,
        profile.per_decode,
        profile.per_decode_context,
        profile.per_attention,
    )
    return tuple(max(value, guess * 1e-3) for value, guess in zip(found, _GUESS, strict=True))
