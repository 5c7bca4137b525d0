"""From the stateful graph on disk to a graph that runs steps over paged keys and values."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13
from openvino._offline_transformations import paged_attention_transformation

from engines.contract import EngineLoadError

WANTED = "sampled_tokens_indices"
"""Input i64[R]: the new tokens, by place in the step, after which logits are wanted. Others never meet the last product."""

_DECOMPRESSION = "decompression_0"
"""The library's mark of a cast that only widens a stored weight (its runtime attribute ``decompression``, version 0)."""

_PASSED_THROUGH = ("Convert", "Multiply", "Divide", "Add", "Tanh", "Reshape")
"""What may stand between the last product and the result: casts, scales, soft caps."""

_ONE_TOKEN = {
    "input_ids": [1],
    "position_ids": [1],
    "past_lens": [1],
    "subsequence_begins": [2],
    "block_indices_begins": [2],
}
"""Shapes of the inputs in a step of one token, which is of one row."""


def page(model: ov.Model, name: str = "model.xml") -> None:
    """Rewrite ``model`` in place: paged attention instead of state, logits only where wanted, half floats kept as stored.
    ``name``: of its file, for messages.

    Raises EngineLoadError where the graph is not of the shape that this rests on.
    """
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise EngineLoadError(f"{name}: paged attention cannot be put into this graph: {error}") from error
    _gather_before_last_product(model, name)
    _keep_half_floats(model)


def fix_to_one_token(model: ov.Model, name: str = "model.xml") -> None:
    """For a paged graph that only ever runs steps of one token: with the shapes said beforehand, the library neither infers them nor looks its
    kernels up again in each of some 600 nodes, which takes a twelfth of such a step's time. How much stands in the cache, and whether
    logits are wanted, stays open. ``name``: of its file, for messages.

    Raises EngineLoadError where the graph does not take the shapes.
    """
    try:
        model.reshape(_ONE_TOKEN)
    except RuntimeError as error:
        raise EngineLoadError(f"{name}: cannot be fixed to one token a step: {error}") from error


def _keep_half_floats(model: ov.Model) -> None:
    """Without the mark, compiling folds every cast of a weight into a float32 copy of it, and the first step packs a second copy
    of that: three times the weights in memory. Marked, weights stay in the mapped file until they are packed once."""
    for node in model.get_ops():
        if node.get_type_name() != "Convert":
            continue
        stored = node.input(0).get_source_output()
        if stored.get_node().get_type_name() == "Constant" and stored.get_element_type() in (ov.Type.bf16, ov.Type.f16):
            node.get_rt_info()[_DECOMPRESSION] = ""


def _gather_before_last_product(model: ov.Model, name: str) -> None:
    product = _last_product(model, name)
    wanted = opset13.parameter([-1], np.int64, name=WANTED)
    wanted.output(0).set_names({WANTED})
    hidden = product.input(0).get_source_output()
    gathered = opset13.gather(hidden, wanted, opset13.constant(0, np.int64))
    product.input(0).replace_source_output(gathered.output(0))
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()


def _last_product(model: ov.Model, name: str) -> ov.Node:
    results = model.get_results()
    if len(results) != 1:
        raise EngineLoadError(f"{name}: one result is expected, got {len(results)}")
    node = results[0].input(0).get_source_output().get_node()
    while node.get_type_name() in _PASSED_THROUGH:
        node = node.input(0).get_source_output().get_node()
    if node.get_type_name() != "MatMul":
        raise EngineLoadError(f"{name}: the logits must come from a MatMul, got {node.get_type_name()}")
    return node
