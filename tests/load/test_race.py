"""The race's bookkeeping, and its fidelity against servers whose answers are known."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from build_scripts.golden.reference import Golden, GoldenSequence
from loadtest.prompts import PromptMaker, TokenSpace
from loadtest.race import courses
from loadtest.race.environment import RaceError, environment
from loadtest.race.fidelity import agreement
from loadtest.race.models import RaceModel, write_q8
from loadtest.race.peers import PEERS, Peer, Running, serving
from loadtest.race.results import Race, best_throughput, leg, markdown, median_of, ratio, read_race, runs_of
from loadtest.sessions import SessionMaker
from loadtest.summary import summarise
from loadtest.transports.base import Target
from tests.load.fakes import fake, paced
from tests.load.records import record, result
from tests.load.test_sessions import byte_tokenizer


def golden(*argmax: int) -> Golden:
    count = len(argmax)
    return Golden("0", {}, [GoldenSequence("t", [30] * count, [], list(argmax), [1.0] * count, [0.0] * count)])


def test_fidelity_is_the_share_of_equal_tokens(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path / "tokenizer.json", 500)
    with paced("--ttft", "0.001") as address:
        assert agreement(Target("native", address), golden(7, 7, 8, 7), tokenizer) == 0.75


def test_fidelity_over_text_compares_the_tokens_own_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = byte_tokenizer(tmp_path / "tokenizer.json", 500)
    vocabulary = Tokenizer.from_file(str(tokenizer)).get_vocab()
    right, wrong = vocabulary["Ġaa"], vocabulary["Ġab"]
    with fake("fake_openai.py", "--gap", "0.001", "--word", " aa") as address:
        assert agreement(Target("openai", address), golden(right, wrong), tokenizer) == 0.5


def test_a_server_that_fails_has_no_fidelity(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path / "tokenizer.json", 500)
    with paced("--refuse-length", "1") as address, pytest.raises(RaceError, match="RESOURCE_EXHAUSTED"):
        agreement(Target("native", address), golden(7), tokenizer)


def test_tables_give_medians_and_say_what_went_wrong() -> None:
    fast = [summarise(result([record(0.0, [0.1, 0.1 + gap], max_tokens=2)])) for gap in (0.1, 0.2, 0.4)]
    slow = summarise(result([record(0.0, [1.0, 2.0], max_tokens=5), record(0.0, status="UNAVAILABLE")]))
    legs = [leg("4 streams", "firsttoken", number, each) for number, each in enumerate(fast)]
    legs.append(leg("4 streams", "genai", 0, slow))
    race = Race("machine", 2, False, {"firsttoken": "this"}, {"firsttoken": 1.0}, legs, {"fastapi": "no torch\nreally"})
    assert median_of(legs[:3], "itl_p50") == pytest.approx((0.2, 0.1, 0.4))
    assert ratio(race, "4 streams", "itl_p50", "genai") == pytest.approx(0.2)
    text = markdown(race, {peer.name: peer.label for peer in PEERS})
    assert "| firsttoken | this | 100.0% |" in text
    assert "(1 failed, 1 ended early)" in text
    assert "(3 repeats)" in text
    assert "did not take part: no torch" in text
    assert "really" not in text


def a_race(**rates: float) -> Race:
    """One leg a peer, of so many tokens per second."""
    race = Race("machine", 2, False)
    for peer, rate in rates.items():
        summary = msgspec.structs.replace(
            summarise(result([record(0.0, [0.1, 0.2], max_tokens=2)])), output_tokens_per_second=rate
        )
        race.legs.append(leg("32 streams", peer, 0, summary, idlers=0.5 if peer == "fastapi" else 0.0))
    return race


def test_the_best_peer_sets_the_rates_not_ourselves() -> None:
    assert best_throughput(a_race(firsttoken=900.0, genai=600.0, fastapi=30.0), "32 streams") == 600.0
    assert best_throughput(a_race(firsttoken=900.0), "32 streams") == 900.0
    with pytest.raises(RaceError, match="32 streams"):
        best_throughput(Race("machine", 2, False), "32 streams")


def test_ratios_are_ours_over_theirs_and_restless_idlers_are_named() -> None:
    text = markdown(a_race(firsttoken=900.0, genai=600.0, fastapi=30.0), {peer.name: peer.label for peer in PEERS})
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert next(row for row in rows if "GenAI" in row).split("|")[2:4] == [" 600 ", " 1.50 "]
    assert "others took up to 50% of the processor time" in next(row for row in rows if "FastAPI" in row)


def test_a_race_goes_on_where_it_stopped_and_only_on_its_own_machine(tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    path.write_bytes(msgspec.json.encode(a_race(firsttoken=900.0)))
    assert runs_of(read_race(path, Race("machine", 2, False)), "32 streams", "firsttoken") == 1
    for other in (Race("laptop", 2, False), Race("machine", 4, False), Race("machine", 2, True)):
        with pytest.raises(RaceError, match="--resume"):
            read_race(path, other)
    path.write_text("{}")
    with pytest.raises(RaceError, match="race"):
        read_race(path, Race("machine", 2, False))


def test_no_prompt_comes_twice_to_a_server() -> None:
    """Within a course and over all courses and repeats: else a prefix cache would answer for the engine."""
    course_of = {course.key: course for course in courses.COURSES}
    seeds = {courses.seed_of(course, repeat) for course in courses.COURSES for repeat in range(10)}
    assert len(seeds) == 10 * len(courses.COURSES)
    made = []
    for key in ("4", "16"):
        workload = course_of[key].make(0.0, courses.QUICK, courses.seed_of(course_of[key], 0))
        maker, words = SessionMaker(workload), PromptMaker(TokenSpace(np.arange(1000, dtype=np.int32)), workload.seed)
        made += [tuple(words.first(session)) for session in maker.sessions()]
    assert len(set(made)) == len(made) == 20


def test_what_a_server_computes_is_counted(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            running = Running(PEERS[0], Target("native", "nowhere"), process.pid)
            before = running.processor_seconds()
            while running.processor_seconds() == before:
                pass
        finally:
            process.kill()


def test_every_peer_gets_the_same_prompts() -> None:
    one, two = (list(SessionMaker(courses.poisson(5.0, courses.QUICK, seed=3)).sessions()) for _ in range(2))
    assert one == two
    assert [courses.closed(width, courses.FULL, 0).requests for width in courses.WIDTHS] == [4, 4, 8, 16, 32]


def test_a_peer_that_cannot_be_installed_says_why() -> None:
    with pytest.raises(RaceError, match="no-such"):
        environment("test-broken", ["./no-such-directory/no-such-package.whl"])


def test_a_peer_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    def command(python: Path, _model: RaceModel, _port: int, _threads: int) -> list[str]:
        return [str(python), "-c", "print('out of luck')"]

    peer = Peer("test-broken", "broken", (), "native", command)
    with pytest.raises(RaceError, match="out of luck"), serving(peer, RaceModel(tmp_path, tmp_path, tmp_path), 1):
        pass


def test_the_eight_bit_twin_holds_the_same_numbers_rounded(tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    rng = np.random.default_rng(0)
    matrix, vector = rng.normal(size=(4, 64)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    writer = GGUFWriter(source, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("m", quants.quantize(matrix, GGMLQuantizationType.Q4_1), raw_dtype=GGMLQuantizationType.Q4_1)
    writer.add_tensor("v", vector)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_q8(source, target)
    tensors = {each.name: each for each in GGUFReader(target).tensors}
    original = {each.name: each for each in GGUFReader(source).tensors}
    assert tensors["m"].tensor_type == GGMLQuantizationType.Q8_0
    exact = quants.dequantize(original["m"].data, GGMLQuantizationType.Q4_1)
    assert (
        np.abs(quants.dequantize(tensors["m"].data, GGMLQuantizationType.Q8_0) - exact).max()
        < np.abs(exact).max() / 100
    )
    assert (tensors["v"].data == vector).all()
    fields = GGUFReader(target).fields
    assert fields["llama.block_count"].contents() == 3
    assert fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert struct.unpack("<I", target.read_bytes()[:4])[0] == 0x46554747
