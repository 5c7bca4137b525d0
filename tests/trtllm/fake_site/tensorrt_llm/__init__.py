"""A CONTRACT FAKE of TensorRT-LLM for tests on machines without GPUs. It is not NVIDIA's software and proves nothing about it.

It has the names and signatures that this project *read* in public sources, and the semantics that its own simulated executor has.
What passes here shows that the adapter keeps our contract towards such a library; whether the real one is such a library, a GPU
machine must say (docs/tensorrt-llm.md).
"""

from __future__ import annotations

__version__ = "1.2.1"
IS_CONTRACT_FAKE = True
