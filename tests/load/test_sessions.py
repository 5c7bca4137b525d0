"""Sessions and prompts: exact lengths, shared where they should be, the same in every process."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from loadtest.arrivals import Arrivals, constant_rate
from loadtest.distributions import parse_distribution
from loadtest.errors import WorkloadError
from loadtest.prompts import PromptMaker, id_space, word_space
from loadtest.sessions import SessionMaker
from loadtest.workload import Behaviour, Lengths, SharedPrefix, TraceUse, Turns, Workload


def workload(**changes: object) -> Workload:
    base: dict[str, object] = {"arrivals": Arrivals(constant_rate(10.0)), "requests": 50}
    return Workload(**base | changes)  # type: ignore[arg-type]


def lengths(prompt: str, output: str = "8") -> Lengths:
    return Lengths(parse_distribution(prompt, "p"), parse_distribution(output, "o"))


def mooncake(tmp_path: Path) -> str:
    path = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 1000, "input_length": 1536, "output_length": 5, "hash_ids": [0, 1, 3]},
        {"timestamp": 2000, "input_length": 300, "output_length": 5, "hash_ids": [4]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_session_depends_on_seed_and_index_alone() -> None:
    maker = SessionMaker(workload(seed=7, lengths=lengths("lognormal:mean=100,cv=1")))
    inorder = list(maker.sessions())
    assert [maker.session(each.index, each.at) for each in reversed(inorder)] == inorder[::-1]
    other = SessionMaker(workload(seed=8, lengths=lengths("lognormal:mean=100,cv=1")))
    assert [each.turns for each in other.sessions()] != [each.turns for each in inorder]


def test_an_option_changes_nothing_but_itself() -> None:
    plain = list(SessionMaker(workload(lengths=lengths("exponential:mean=100"))).sessions())
    behaviour = Behaviour(cancel_rate=0.5, stall_rate=0.2)
    given_up = list(SessionMaker(workload(lengths=lengths("exponential:mean=100"), behaviour=behaviour)).sessions())
    assert [each.turns[0].fresh_tokens for each in plain] == [each.turns[0].fresh_tokens for each in given_up]
    cancelled = [each.turns[0].cancel_after is not None for each in given_up]
    assert 10 < sum(cancelled) < 40


def test_requests_and_duration_both_end_a_run() -> None:
    assert len(list(SessionMaker(workload(requests=13)).sessions())) == 13
    timed = list(SessionMaker(workload(requests=None, duration=3.0)).sessions())
    assert all(each.at < 3.0 for each in timed)
    assert 15 < len(timed) < 50


def test_prompts_have_exact_lengths_and_share_only_their_groups_prefix() -> None:
    maker = SessionMaker(workload(prefix=SharedPrefix(tokens=40, groups=2), lengths=lengths("60")))
    prompts = PromptMaker(id_space(1000), seed=0)
    made = {each.index: (each.prefix_group, prompts.first(each)) for each in maker.sessions()}
    assert {len(ids) for _, ids in made.values()} == {100}
    assert {group for group, _ in made.values()} == {0, 1}
    for (one, a), (two, b) in itertools.combinations(made.values(), 2):
        assert (a[:40] == b[:40]).all() == (one == two)
        assert (a[40:] != b[40:]).any()
    all_ids = np.concatenate([ids for _, ids in made.values()])
    assert all_ids.min() >= 20
    assert all_ids.max() < 980


def test_equal_blocks_of_a_trace_are_equal_tokens(tmp_path: Path) -> None:
    maker = SessionMaker(Workload(trace=TraceUse(mooncake(tmp_path))))
    prompts = PromptMaker(id_space(1000), seed=0)
    one, two, three = (prompts.first(each) for each in maker.sessions())
    assert [len(one), len(two), len(three)] == [1100, 1536, 300]
    assert (one[:1024] == two[:1024]).all()
    assert (one[1024:] != two[1024:1100]).any()
    assert (three != one[:300]).any()


def test_a_traces_clock_and_lengths_can_be_changed(tmp_path: Path) -> None:
    use = TraceUse(mooncake(tmp_path), speedup=4.0, scale=0.1)
    sessions = list(SessionMaker(Workload(trace=use)).sessions())
    assert [each.at for each in sessions] == [0.0, 0.25, 0.5]
    assert [each.turns[0].fresh_tokens for each in sessions] == [110, 154, 30]
    prompts = PromptMaker(id_space(1000), seed=0)
    assert (prompts.first(sessions[0])[:102] == prompts.first(sessions[1])[:102]).all()


def test_a_recordings_tail_belongs_to_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    rows = [{"at": at, "prompt_tokens": 50, "output_tokens": 1, "prefix": ["aa"]} for at in (0.0, 1.0)]
    head = {"format": "firsttoken-recording", "version": 1, "block_size": 32}
    path.write_text("\n".join(map(json.dumps, [head, *rows])))
    prompts = PromptMaker(id_space(1000), seed=0)
    one, two = (prompts.first(each) for each in SessionMaker(Workload(trace=TraceUse(str(path)))).sessions())
    assert (one[:32] == two[:32]).all()
    assert (one[32:] != two[32:]).any()


def test_what_cannot_fit_the_context_is_refused_with_a_remedy(tmp_path: Path) -> None:
    maker = SessionMaker(Workload(trace=TraceUse(mooncake(tmp_path))))
    with pytest.raises(WorkloadError, match=r"1541 tokens.*holds 512.*--scale-lengths 0\.332"):
        maker.check_fits(512)
    turns = Turns(count=parse_distribution("3", "t"))
    maker = SessionMaker(workload(turns=turns, lengths=lengths("100", "10"), prefix=SharedPrefix(20)))
    maker.check_fits(350)
    with pytest.raises(WorkloadError, match="350 tokens"):
        maker.check_fits(349)


def test_prompts_of_a_file_are_sent_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "Hello"}\n{"token_ids": [5, 6], "max_tokens": 3}\n')
    sessions = list(SessionMaker(workload(prompts=str(path))).sessions())
    texts = [each for each in sessions if each.given is not None and each.given.text == "Hello"]
    ids = [each for each in sessions if each.given is not None and each.given.token_ids]
    assert len(texts) + len(ids) == len(sessions)
    assert ids[0].turns[0].output_tokens == 3
    assert PromptMaker(id_space(1000), 0).first(ids[0]).tolist() == [5, 6]
    path.write_text('{"text": "Hello", "token_ids": [1]}\n')
    with pytest.raises(WorkloadError, match="line 1"):
        SessionMaker(workload(prompts=str(path)))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arrivals": None}, "one of --rate"),
        ({"concurrency": 3}, "one of --rate"),
        ({"requests": None}, "--duration or --requests"),
        ({"requests": 0}, "--requests: must be above 0, not 0"),
        ({"duration": 5.0, "warmup": 5.0}, "--warmup"),
        ({"classes": {"vip": 1.0}}, "'vip'"),
        ({"behaviour": Behaviour(cancel_rate=2.0)}, "--cancel-rate.*not 2"),
        ({"behaviour": Behaviour(deadline=0.0)}, "--deadline"),
    ],
)
def test_a_workload_that_cannot_be_is_refused_by_option(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        SessionMaker(workload(**changes))


def byte_tokenizer(path: Path, words: int) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = "abcdefghijklmnopqrstuvwxyz"
    names = ["".join(pair) for pair in itertools.product(letters, repeat=2)][:words]
    vocab = {piece: token for token, piece in enumerate([*letters, "Ġ", *(f"Ġ{name[0]}" for name in names[::26])])}
    merges = [("Ġ", letter) for letter in letters if f"Ġ{letter}" in vocab]
    for name in names:
        vocab.setdefault("Ġ" + name, len(vocab))
        merges.append((f"Ġ{name[0]}", name[1]))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
    return path


def test_text_prompts_tokenize_to_exactly_their_ids(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    path = byte_tokenizer(tmp_path / "tokenizer.json", 500)
    space = word_space(path)
    ids = PromptMaker(space, 0).first(next(SessionMaker(workload(lengths=lengths("777"))).sessions()))
    assert Tokenizer.from_file(str(path)).encode(space.text(ids)).ids == ids.tolist()
    assert len(ids) == 777


def test_a_tokenizer_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"--tokenizer.*256"):
        word_space(byte_tokenizer(tmp_path / "tokenizer.json", 100))
    with pytest.raises(WorkloadError, match="--tokenizer"):
        word_space(tmp_path / "none.json")
