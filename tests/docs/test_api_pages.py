"""docs/api.md and its sisters say what the protocol and the tables of the server say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import operations_pb2 as ops
from server.config import Config
from server.rpc.kserve.models import INPUTS
from server.rpc.kserve.service import NOT_OFFERED
from server.rpc.status import TABLE

DOCS = Path(__file__).resolve().parents[2] / "docs"
API = (DOCS / "api.md").read_text(encoding="utf-8")
TRITON = (DOCS / "from-triton.md").read_text(encoding="utf-8")
MESSAGES = (pb.GenerateRequest, pb.Sampling, pb.Stop, pb.Logprobs)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.DESCRIPTOR.name)
def test_every_field_has_its_row_and_every_row_is_a_field(message: type[pb.GenerateRequest]) -> None:
    section = API.split(f"### {message.DESCRIPTOR.name}\n")[1].split("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert rows == [field.name for field in message.DESCRIPTOR.fields]


def test_every_method_has_its_row() -> None:
    for descriptor in (pb.DESCRIPTOR, ops.DESCRIPTOR):
        for service in descriptor.services_by_name.values():
            for method in service.methods:
                assert f"| `{method.name}` |" in API, method.full_name


def test_limits_are_the_defaults_in_force() -> None:
    limits = Config().limits
    assert f"{limits.max_outputs}, and the server's seats" in API
    assert f"{limits.max_logit_biases:,} entries" in API
    assert f"{limits.max_bad_words} of up to {limits.max_bad_word_size} bytes" in API
    assert f"{limits.max_stop_strings} of up to {limits.max_stop_string_bytes:,} bytes" in API
    assert f"{limits.max_guide_bytes:,} bytes" in API
    assert f"{limits.max_request_id_size} printable ASCII" in API
    assert f"| {limits.default_max_tokens}, or what the context leaves" in API
    assert f"| {limits.max_top_logprobs} |" in API
    assert f"took nothing for {limits.reader_stall:.0f} s" in API


def test_every_status_has_its_row() -> None:
    from google.rpc import code_pb2

    for _, code, _ in TABLE:
        assert f"| `{code_pb2.Code.Name(code)}` |" in API


def test_every_triton_input_is_mentioned() -> None:
    said = set(re.findall(r"`([\w*]+)`", TRITON))
    prefixes = tuple(name.rstrip("*") for name in said if name.endswith("*"))
    for kind, specs in INPUTS.items():
        for spec in specs:
            assert spec.name in said or spec.name.startswith(prefixes), (kind, spec.name)


def test_what_is_not_offered_is_named() -> None:
    for name in NOT_OFFERED:
        family = name.replace("RepositoryModelUnload", "Unload")
        assert family in TRITON or "shared memory" in TRITON, name


@pytest.mark.parametrize("page", ["api.md", "from-triton.md", "from-vllm.md", "from-tensorrt-llm-serve.md"])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (DOCS / page).read_text(encoding="utf-8")):
        assert (DOCS / target).is_file(), target


@pytest.mark.parametrize("page", ["from-vllm.md", "from-tensorrt-llm-serve.md"])
def test_the_fields_that_other_names_become_exist(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    roots = {kind.DESCRIPTOR.name.lower(): kind.DESCRIPTOR for kind in (pb.Sampling, pb.Stop, pb.Guide, pb.Logprobs)}
    named = re.findall(r"`(sampling|stop|guide|logprobs)\.(\w+)`", text)
    assert len(named) > 5
    for root, field in named:
        assert field in roots[root].fields_by_name, f"{root}.{field}"
