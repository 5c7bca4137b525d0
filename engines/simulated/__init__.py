"""Engines without a model: a declared cost, in real or virtual time, and tokens that betray every error of the caller."""

from __future__ import annotations

from engines.simulated.loading import SimulatedEngine, SimulatedShape, load

__all__ = ["SimulatedEngine", "SimulatedShape", "load"]
