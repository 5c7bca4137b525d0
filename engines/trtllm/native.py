"""The only module that imports tensorrt_llm."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from engines.contract import EngineLoadError
from engines.trtllm.causes import explain

Bindings: TypeAlias = ModuleType
"""``tensorrt_llm.bindings.executor``. Nothing here knows its types but by name; ``probe`` holds the names against it."""


class NativeExecutor(Protocol):
    """``tensorrt_llm.bindings.executor.Executor``, as far as this adapter uses it."""

    def enqueue_requests(self, requests: list[Any], /) -> list[int]: ...
    def await_responses(self, timeout: timedelta, /) -> list[Any]: ...
    def cancel_request(self, id: int, /) -> None: ...  # noqa: A002 - the library's name
    def get_latest_iteration_stats(self) -> list[Any]: ...
    def get_kv_cache_event_manager(self) -> Any | None: ...  # noqa: ANN401 - the library ships no types
    def can_enqueue_requests(self) -> bool: ...
    def shutdown(self) -> None: ...


PINNED = "1.2.1"
"""The only release that this adapter is written for: compiled engines left TensorRT-LLM after its 1.2 line."""

HOW_TO_GET_IT = (
    f"TensorRT-LLM {PINNED} is not installed here: on Linux with NVIDIA GPUs and Python 3.10 or 3.12, "
    "`pip install 'firsttoken[trtllm]' --extra-index-url https://pypi.nvidia.com`, or serve from the image of "
    "`docker build --target gpu`; docs/tensorrt-llm.md has the steps"
)


def load_bindings() -> Bindings:
    """Import the library. Takes seconds and may initialise CUDA, so everything that can be checked without it comes before.

    Raises EngineLoadError, one sentence.
    """
    try:
        import_module("tensorrt_llm")  # loads the shared libraries that the bindings need
        return import_module("tensorrt_llm.bindings.executor")
    except ModuleNotFoundError as error:
        if error.name == "tensorrt_llm":
            raise EngineLoadError(HOW_TO_GET_IT) from error
        raise EngineLoadError(explain(str(error))) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineLoadError(f"TensorRT-LLM cannot be imported: {explain(str(error))}") from error


def logit_bias(vocab_size: int, biases: Sequence[tuple[int, float]]) -> object:
    """What is added to each token's logit, as the float32 tensor that the library takes; its own dependency torch makes it."""
    torch = import_module("torch")
    tensor = torch.zeros(vocab_size, dtype=torch.float32)
    for token, bias in biases:
        tensor[token] = bias
    made: object = tensor
    return made
