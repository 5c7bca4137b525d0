from __future__ import annotations

import numpy as np
import pytest

from engines.contract import BlockCopy
from engines.openvino.runner import OpenVinoStepRunner
from tests.openvino.tiny_engine import BLOCKS, Steps, row, spec, tiny_runner, tokens, with_numerics


def test_tensors_share_the_memory_and_lie_aligned() -> None:
    runner = tiny_runner()
    memory = runner._require_alive().memory
    for cache in memory._caches:
        for layer, tensor in enumerate(cache.tensors.values()):
            assert tensor.data.ctypes.data == cache.bytes[layer].ctypes.data
            assert tensor.data.ctypes.data % 64 == 0
            assert tensor.get_byte_size() == cache.bytes[layer].nbytes
    runner.close()


def test_a_block_is_its_own_in_every_layer() -> None:
    runner = tiny_runner()
    memory = runner._require_alive().memory
    memory.fill(0)
    size = runner.limits.bytes_per_block
    generator = np.random.default_rng(3)
    contents = {block: generator.bytes(size) for block in (0, 7, BLOCKS - 1)}
    for block, content in contents.items():
        memory.write(block, content)
    for block in range(BLOCKS):
        assert memory.read(block) == contents.get(block, bytes(size))
    memory.copy([BlockCopy(7, 8), BlockCopy(8, 0), BlockCopy(BLOCKS - 1, 8)])
    assert [memory.read(block) for block in (0, 7, 8)] == [contents[7], contents[7], contents[BLOCKS - 1]]
    runner.close()


def talk(runner: OpenVinoStepRunner) -> list[int]:
    """Chunked prefill into the middle of a block, decode, and a batch mate: what uses blocks in every way."""
    steps, prompt = Steps(runner), tokens(75)
    steps.run(row(1, prompt[:41], 0, [3, 1], None), opened=[spec(1)])
    said = [steps.run(row(1, prompt[41:], 41, [3, 1, 9])).outputs[0].tokens[0]]
    steps.run(row(1, [said[-1]], 75, [3, 1, 9]), row(2, prompt[:33], 0, [5, 6]), opened=[spec(2)])
    for past in range(76, 100):
        said += steps.run(row(1, None, past, [3, 1, 9, 12])).outputs[0].tokens
    return said


@pytest.mark.parametrize(("kv_cache", "activations"), [("f32", "f32"), ("f16", "f32")])
def test_what_was_in_the_memory_before_does_not_leak(kv_cache: str, activations: str) -> None:
    """NaN in every place that was never written: one read of any of them would turn logits into NaN."""
    said = []
    for byte in (0x00, 0xFF):
        runner = tiny_runner(with_numerics(kv_cache=kv_cache, activations=activations))
        runner._require_alive().memory.fill(byte)
        said.append(talk(runner))
        runner.close()
    assert said[0] == said[1]
    assert len(said[0]) == 25
