"""What an engine is: the one contract between the server and whatever turns token ids into the next token.

Two kinds of engine exist in the field, and both are honest here:

* a :class:`StepRunner` runs one step that *we* compose (OpenVINO, simulated);
* a :class:`RequestExecutor` takes whole requests and batches them itself (TensorRT-LLM, simulated).

Logits never cross this contract: sampling lives behind the engine, results carry token ids and log-probabilities.
Every message is a frozen struct, so that a process boundary can come later without changing a caller.
"""

from __future__ import annotations

from engines.contract.arrays import BlockTable, TokenArray
from engines.contract.capabilities import Capabilities
from engines.contract.errors import (
    EngineDeadError,
    EngineError,
    EngineLoadError,
    EngineMemoryError,
    PlanError,
    StepError,
)
from engines.contract.executor import (
    ExecutorFinish,
    ExecutorLimits,
    ExecutorRequest,
    ExecutorResponse,
    ExecutorStats,
    RequestExecutor,
    Retention,
)
from engines.contract.step import (
    BlockCopy,
    KvGroup,
    Output,
    Row,
    RunnerLimits,
    Sample,
    Score,
    SequenceSpec,
    StepHandle,
    StepPlan,
    StepResult,
    StepRunner,
    Want,
)

__all__ = [
    "BlockCopy",
    "BlockTable",
    "Capabilities",
    "EngineDeadError",
    "EngineError",
    "EngineLoadError",
    "EngineMemoryError",
    "ExecutorFinish",
    "ExecutorLimits",
    "ExecutorRequest",
    "ExecutorResponse",
    "ExecutorStats",
    "KvGroup",
    "Output",
    "PlanError",
    "RequestExecutor",
    "Retention",
    "Row",
    "RunnerLimits",
    "Sample",
    "Score",
    "SequenceSpec",
    "StepError",
    "StepHandle",
    "StepPlan",
    "StepResult",
    "StepRunner",
    "TokenArray",
    "Want",
]
