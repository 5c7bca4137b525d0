"""The real command in real processes, against a server on a real socket."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import grpc
import pytest
from google.rpc import error_details_pb2

from protos.firsttoken.v1 import generation_pb2 as pb
from tests.client.fake_server import FakeServer, delta, endless, final, refuse, say, serving_in_thread, text_of

COMMAND = [sys.executable, "-m", "firsttoken"]


def firsttoken(*words: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> tuple[int, str, str]:
    given = stdin if isinstance(stdin, bytes) else stdin.encode()
    done = subprocess.run(
        [*COMMAND, *words], input=given, capture_output=True, timeout=60, check=False, env={**os.environ, **(env or {})}
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


# --------------------------------------------------------------------------- the dispatcher


def test_help_lists_every_verb_and_loads_neither_grpc_nor_an_engine_library() -> None:
    code = (
        "import sys\nfrom firsttoken.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    status = end.code\n"
        "heavy = {'grpc', 'openvino', 'numpy', 'tokenizers', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'{status} {heavy}' if status or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for verb in ("serve", "generate", "chat", "load", "version"):
        assert re.search(rf"^  {verb} +\w", done.stdout, re.MULTILINE)


def test_every_verb_explains_itself() -> None:
    from firsttoken.cli import verbs

    for verb in verbs():
        status, out, _ = firsttoken(verb, "--help")
        assert status == 0, verb
        assert f"usage: firsttoken {verb}" in out


def test_version() -> None:
    assert firsttoken("version")[1] == firsttoken("--version")[1]
    assert re.fullmatch(r"firsttoken \S.*\n", firsttoken("version")[1])
    assert "\npython 3." in firsttoken("version", "--verbose")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "verbs:"),
        (["generat"], "no verb 'generat'; did you mean generate?"),
        (["xyzzy"], "no verb 'xyzzy'; there are "),
        (["generate"], "required: prompt"),
        (["generate", "x", "--max-tokens", "many"], "invalid int value: 'many'"),
        (["generate", "x", "--priority", "urgent"], "invalid choice: 'urgent'"),
        (["generate", "x", "--seed", "1", "--stop", "a", "--stop", "b", "--seed=2"], "--seed: is given twice: 1 and 2"),
        (["simulate", "--rate", "1", "--rate", "2"], "--rate: is given twice: 1"),
        (["serve", "--config", "a", "--config=b"], "--config is given twice: a and b"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(words: Sequence[str], said: str) -> None:
    status, out, err = firsttoken(*words)
    assert (status, out) == (2, "")
    assert said in err


# --------------------------------------------------------------------------- generate


def test_generate_streams_the_text_and_ends_with_the_times() -> None:
    with serving_in_thread(FakeServer()) as fake:
        status, out, err = firsttoken("generate", "to be or", "--address", fake.address)
    assert (status, out) == (0, "to be or \n")
    assert re.fullmatch(
        r"first token after \d+ ms; then \d+\.\d tokens/s; 3 tokens, ended by length; prompt of 5, 4 cached\n", err
    )


def test_generate_shows_each_piece_as_it_comes() -> None:
    with serving_in_thread(FakeServer(endless)) as fake:
        words = [*COMMAND, "generate", "x", "--address", fake.address]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.read(4).startswith(b"0 1 ")  # long before the end, which never comes
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        assert fake.cancelled.wait(60)


def test_generate_whose_reader_goes_away_cancels_and_says_nothing() -> None:
    with serving_in_thread(FakeServer(endless)) as fake:
        words = [*COMMAND, "generate", "x", "--address", fake.address]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(4)
            process.stdout.close()
            assert process.wait(60) == 141
            assert process.stderr.read() == b""
        assert fake.cancelled.wait(60)


def test_generate_passes_its_options_on() -> None:
    with serving_in_thread(FakeServer()) as fake:
        options = "--max-tokens 9 --temperature 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 --seed 7 --stop A --stop B"
        more = "--priority batch --cache-salt s --ttft-deadline 2 --timeout 30"
        assert firsttoken("generate", "x", "--address", fake.address, *options.split(), *more.split())[0] == 0
        request = fake.requests[0]
        assert (request.max_tokens, request.sampling.top_k, request.sampling.seed) == (9, 4, 7)
        assert (request.sampling.temperature, request.sampling.top_p) == pytest.approx((0.5, 0.9))
        assert list(request.stop.strings) == ["A", "B"]
        assert (request.priority, request.cache_salt, request.ttft_deadline.seconds) == (pb.PRIORITY_BATCH, "s", 2)
        assert fake.seconds_left[0] == pytest.approx(30, abs=5)


def test_generate_for_programs_prints_one_object_a_line() -> None:
    said = say(delta('line\n"é', 5, 6), final(pb.FINISH_REASON_STOP_STRING, stop_string="##", seed=7))
    with serving_in_thread(FakeServer(said)) as fake:
        status, out, err = firsttoken("generate", "x", "--json", "--address", fake.address, "--max-tokens", "4")
    first, last = (json.loads(line) for line in out.splitlines())
    assert (status, err) == (0, "")
    assert first == {"type": "delta", "index": 0, "tokens": [5, 6], "text": 'line\n"é'}
    assert last["type"] == "final"
    assert (last["finish_reason"], last["stop_string"], last["seed"]) == ("stop_string", "##", 7)
    assert last["usage"] == {"prompt_tokens": 5, "cached_tokens": 4, "completion_tokens": 3, "discarded_tokens": 2}
    assert last["timings"] == {"queued": 0.1, "prefill": 0.2, "first_token": 0.3, "total": 0.4}
    assert last["client"]["first_token_seconds"] > 0


def test_generate_reads_the_prompt_from_standard_input() -> None:
    with serving_in_thread(FakeServer()) as fake:
        assert firsttoken("generate", "-", "--address", fake.address, stdin="two\nlines\n\n")[0] == 0
        assert text_of(fake.requests[0].prompt) == "two\nlines\n"
        status, _, err = firsttoken("generate", "-", "--address", fake.address, stdin=b"\xff")
        assert (status, err) == (1, "firsttoken: standard input is no valid UTF-8: byte 0 is 0xff\n")


def test_an_output_that_cannot_say_a_character_gets_a_question_mark() -> None:
    with serving_in_thread(FakeServer(say(delta("café"), final()))) as fake:
        _, out, _ = firsttoken("generate", "x", "--address", fake.address, env={"PYTHONIOENCODING": "ascii"})
    assert out == "caf?\n"


def test_errors_are_one_sentence() -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p", description="must be at most 1")
    bad = refuse(
        grpc.StatusCode.INVALID_ARGUMENT,
        error_details_pb2.BadRequest(field_violations=[violation]),
        message="sampling.top_p: must be at most 1, not 2",
    )
    with serving_in_thread(FakeServer(bad)) as fake:
        status, out, err = firsttoken("generate", "x", "--address", fake.address)
    assert (status, out, err) == (1, "", "firsttoken: sampling.top_p: must be at most 1, not 2\n")


def test_arguments_that_make_no_request_are_one_sentence_too() -> None:
    status, _, err = firsttoken("generate", "x", "--max-tokens", str(2**40))
    assert status == 1
    assert re.fullmatch(r"firsttoken: max_tokens: .*\n", err)


def test_where_no_server_answers_the_error_says_so() -> None:
    status, _, err = firsttoken("generate", "x", "--address", "127.0.0.1:1")
    assert status == 1
    assert re.fullmatch(r"firsttoken: no server answers at 127\.0\.0\.1:1 \(.*\)\n", err)


# --------------------------------------------------------------------------- chat


def test_chat_through_pipes_keeps_the_conversation() -> None:
    with serving_in_thread(FakeServer(say(delta("one"), final()), say(delta("two\n"), final()))) as fake:
        words = ["chat", "--address", fake.address, "--system", "Be brief."]
        status, out, err = firsttoken(*words, stdin="first\n\nsecond\n/new\nthird\n")
        assert (status, out.splitlines()[:2]) == (0, ["one", "two"])
        conversations = [text_of(request.prompt) for request in fake.requests]
    assert conversations == [
        "system: Be brief.\nuser: first",
        "system: Be brief.\nuser: first\nassistant: one\nuser: second",
        "system: Be brief.\nuser: third",
    ]
    assert err.count("ended by length") == 3


def test_chat_through_pipes_ends_at_an_error() -> None:
    with serving_in_thread(FakeServer(refuse(grpc.StatusCode.INTERNAL, message="broken"))) as fake:
        status, _, err = firsttoken("chat", "--address", fake.address, stdin="first\nsecond\n")
        assert (status, err) == (1, "firsttoken: broken\n")
        assert len(fake.requests) == 1


# The terminal on standard input becomes the process's own, so that Ctrl-C reaches it. Done by the child, not between fork and
# exec: gRPC's threads run in this process.
ON_ITS_OWN_TERMINAL = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.executable, [sys.executable, "-m", "firsttoken", *sys.argv[1:]])
"""


class Terminal:
    """A process on a terminal of its own, and what it has shown so far."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_ITS_OWN_TERMINAL, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(slave)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + 90
        while self.shown.count(text) < times:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"waited for {text!r} in {self.shown!r}")
            try:
                self.shown += os.read(self._master, 4096).decode(errors="replace")
            except OSError:
                raise TimeoutError(f"ended before {text!r}: {self.shown!r}") from None

    def status(self) -> int:
        return self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


def test_chat_on_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_ends() -> None:
    with serving_in_thread(FakeServer(endless)) as fake, Terminal("chat", "--address", fake.address) as terminal:
        terminal.wait_for("> ")
        terminal.type("count\n")
        terminal.wait_for("0 1 2")
        terminal.type("\x03")
        terminal.wait_for("[stopped]")
        assert fake.cancelled.wait(60)
        terminal.wait_for("> ", times=2)
        terminal.type("and now\n")
        terminal.wait_for("ended by length")
        terminal.wait_for("> ", times=3)
        terminal.type("\x04")
        assert terminal.status() == 0
        assert re.match(r"user: count\nassistant: 0 1 2 [\d ]*\nuser: and now", text_of(fake.requests[1].prompt))


def test_chat_on_a_terminal_survives_an_error_and_forgets_the_turn() -> None:
    with (
        serving_in_thread(FakeServer(refuse(grpc.StatusCode.INTERNAL, message="broken"))) as fake,
        Terminal("chat", "--address", fake.address) as terminal,
    ):
        terminal.wait_for("> ")
        terminal.type("first\n")
        terminal.wait_for("firsttoken: broken")
        terminal.wait_for("> ", times=2)
        terminal.type("again\n")
        terminal.wait_for("ended by length")
        terminal.wait_for("> ", times=3)
        terminal.type("\x04")
        assert terminal.status() == 0
        assert text_of(fake.requests[1].prompt) == "user: again"


def test_what_a_model_says_cannot_command_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\rhidden\x9b"
    with (
        serving_in_thread(FakeServer(*[say(delta(evil), final())] * 2)) as fake,
        Terminal("generate", "x", "--address", fake.address) as terminal,
    ):
        terminal.wait_for("ended by")
        assert terminal.status() == 0
        assert "\x1b" not in terminal.shown
        assert "hidden" in terminal.shown
        assert firsttoken("generate", "x", "--address", fake.address)[1] == evil + "\n"  # a pipe gets it as it is


def test_a_broken_import_of_one_verb_does_not_hide_the_others(tmp_path: Path) -> None:
    """Only the verb that runs is imported."""
    (tmp_path / "grpc.py").write_text("raise ImportError('no grpc here')")
    assert firsttoken("version", env={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"})[0] == 0
