"""A simulated engine as a server finds it."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from engines.contract import EngineLoadError, ExecutorRequest, Row, Sample, SequenceSpec, StepPlan
from engines.manifest import EngineManifest
from engines.sampling.params import SamplingParams
from engines.simulated import SimulatedShape, load
from engines.simulated.clock import VirtualClock
from engines.simulated.cost import PROFILES
from engines.simulated.tokenizer import CHAT_TEMPLATE, VOCAB_SIZE


@pytest.mark.parametrize(
    "text", ["Hello, world\n", "wörld — ☀ 東京 🧑‍🚀", "\x00\x7f\t", "<|im_start|>user\nhi<|im_end|>", "a  b   c"]
)
def test_the_tokenizer_round_trips_every_text(text: str) -> None:
    tokenizer = Tokenizer.from_str(load().tokenizer_json)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert max(ids) < VOCAB_SIZE == tokenizer.get_vocab_size()


def test_a_token_is_a_byte_and_specials_follow() -> None:
    loaded = load()
    tokenizer = Tokenizer.from_str(loaded.tokenizer_json)
    assert tokenizer.encode("é!").ids == list("é!".encode())
    specials = loaded.manifest.tokenizer.special_tokens
    assert {name: tokenizer.token_to_id(name) for name in specials} == specials
    assert sorted(specials.values()) == [256, 257, 258]


def test_the_chat_template_renders_a_conversation() -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    messages = [{"role": "user", "content": "Hi"}]
    rendered = (
        ImmutableSandboxedEnvironment().from_string(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=True)
    )
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_manifest_is_a_manifest(profile: str) -> None:
    manifest = load(profile).manifest
    assert msgspec.json.decode(msgspec.json.encode(manifest), type=EngineManifest) == manifest
    assert manifest.engine == "simulated"
    assert manifest.model.vocab_size == VOCAB_SIZE
    assert manifest.profile.fixed == PROFILES[profile].fixed


def test_fingerprints_tell_what_gives_other_keys_and_values() -> None:
    prints = [
        load(shape=shape).manifest.fingerprint for shape in (SimulatedShape(), SimulatedShape(), SimulatedShape(seed=1))
    ]
    assert prints[0] == prints[1] != prints[2]


def test_an_unknown_profile_is_refused_by_name() -> None:
    with pytest.raises(EngineLoadError, match=r"must be one of gpu, instant, laptop,.* got 'desktop'"):
        load("desktop")


@pytest.mark.parametrize("draws", ["tokens", "logits"])
def test_both_twins_of_one_shape_say_the_same(draws: str) -> None:
    shape = msgspec.convert({"end_rate": 0.05, "draws": draws, "blocks": 64}, SimulatedShape)
    prompt = array("i", list(b"Once upon a time"))
    sampling = SamplingParams(temperature=0.8, seed=9)
    executor = load("laptop", shape, executor=True, clock=VirtualClock()).engine
    executor.enqueue([ExecutorRequest(request=1, tokens=prompt, max_tokens=20, sampling=sampling, end_ids=())])
    said: list[int] = []
    while responses := executor.await_responses(1000.0):
        said += [token for response in responses for token in response.tokens]
    runner = load("laptop", shape, clock=VirtualClock()).engine
    spec = SequenceSpec(sequence=7, index=0, sampling=sampling, prompt=prompt)
    tokens: array[int] | None = prompt
    past, table = 0, array("i", range(64))
    twin: list[int] = []
    for step in range(20):
        row = Row(sequence=7, tokens=tokens, past=past, blocks=(table,), want=Sample())
        (output,) = runner.start(StepPlan(step=step, rows=[row], opened=[spec] if step == 0 else ())).result().outputs
        past += 1 if tokens is None else len(tokens)
        tokens = None
        twin += output.tokens
    assert twin == said
    assert len(said) == 20


def test_what_is_said_is_text() -> None:
    loaded = load(shape=SimulatedShape(end_rate=0.0))
    said = loaded.language.likeliest_of(np.arange(500, dtype=np.uint64)).tolist()
    text = Tokenizer.from_str(loaded.tokenizer_json).decode(said)
    assert len(text) == 500
    assert text.isascii()
