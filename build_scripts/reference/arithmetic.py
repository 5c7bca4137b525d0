"""The formulas of a decoder, over arrays of any float type. Tokens come first: [tokens, values] or [tokens, heads, size]."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating[Any]]


def rms_norm(values: Array, weight: Array, epsilon: float) -> Array:
    """Zhang and Sennrich 2019, over the last axis."""
    return np.asarray(values / np.sqrt(np.mean(values * values, -1, keepdims=True) + epsilon) * weight)


def soft_cap(values: Array, cap: float | None) -> Array:
    return values if cap is None else np.asarray(cap * np.tanh(values / cap))


def activate(values: Array, activation: str) -> Array:
    """SiLU, or GELU in its tanh form (Hendrycks and Gimpel 2016)."""
    if activation == "silu":
        return np.asarray(values / (1 + np.exp(-values)))
    inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)
    return np.asarray(0.5 * values * (1 + np.tanh(inner)))


def rotate(heads: Array, frequencies: Array, stretch: float) -> Array:
    """Turn [tokens, heads, size] by position, half-split pairs, the first 2 * len(frequencies) values of each head."""
    half = len(frequencies)
    angles = np.arange(heads.shape[0], dtype=heads.dtype)[:, None, None] * frequencies.astype(heads.dtype)
    cos, sin = np.cos(angles) * heads.dtype.type(stretch), np.sin(angles) * heads.dtype.type(stretch)
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)


def attend(queries: Array, keys: Array, values: Array, *, scale: float, cap: float | None, window: int | None) -> Array:
    """Causal attention; each key head serves a run of query heads. [tokens, query heads, size] in and out."""
    tokens, heads, size = queries.shape
    groups = keys.shape[1]
    grouped = queries.reshape(tokens, groups, heads // groups, size)
    scores = soft_cap(np.einsum("qgrd,kgd->grqk", grouped, keys) * queries.dtype.type(scale), cap)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    hidden = (distance < 0) | (distance >= (window if window is not None else tokens))
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.asarray(np.einsum("grqk,kgd->qgrd", weights, values).reshape(tokens, heads, size))


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
