"""One tree, three sources, no silent typo."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from server.config import Config, SchedulerConfig
from server.config_ports import AccessConfig, GrpcConfig, HttpConfig, TlsConfig
from server.config_sources import ConfigError, knobs, load_config, parse_flags


def write(folder: Path, text: str) -> Path:
    path = folder / "server.toml"
    path.write_text(text)
    return path


def test_each_knob_has_a_description_and_a_default_that_is_valid() -> None:
    listed = list(knobs())
    assert len(listed) > 30
    assert [knob.path for knob in listed if not knob.field.description or knob.field.is_required()] == []
    assert load_config(None, {}, {}).config == Config()


def test_numbers_are_bounded() -> None:
    unbounded = [knob.path for knob in knobs() if knob.field.annotation in (int, float) and not knob.field.metadata]
    assert unbounded == []


def test_defaults_reach_only_this_machine() -> None:
    assert Config().exposures() == []
    opened = Config(grpc=GrpcConfig(host="0.0.0.0"), http=HttpConfig(host="0.0.0.0"))  # noqa: S104
    assert [word in text for text, word in zip(opened.exposures(), ("encryption", "authentication"), strict=True)]
    guarded = opened.model_copy(update={"tls": TlsConfig(certificate="c", key="k"), "access": AccessConfig(file="f")})
    assert guarded.exposures() == []
    shown = guarded.model_copy(update={"http": HttpConfig(host="0.0.0.0", remote_metrics=True)})  # noqa: S104
    assert len(shown.exposures()) == 1


def test_a_later_source_wins_and_each_value_knows_its_origin(tmp_path: Path) -> None:
    file = write(tmp_path, "[grpc]\nport = 1\nmin_ping_interval = 7\n[scheduler]\nmax_sequences = 3\n[http]\nport = 4")
    environ = {
        "FIRSTTOKEN_GRPC__PORT": "2",
        "FIRSTTOKEN_SCHEDULER__MAX_SEQUENCES": "5",
        "FIRSTTOKEN_CONFIG": "x",
        "PATH": "y",
    }
    loaded = load_config(file, environ, {"grpc.port": "9"})
    assert (loaded.config.grpc.port, loaded.config.grpc.min_ping_interval) == (9, 7.0)
    assert (loaded.config.scheduler.max_sequences, loaded.config.http.port) == (5, 4)
    assert loaded.origins == {
        "grpc.port": "--grpc.port",
        "grpc.min_ping_interval": str(file),
        "scheduler.max_sequences": "FIRSTTOKEN_SCHEDULER__MAX_SEQUENCES",
        "http.port": str(file),
    }


@pytest.mark.parametrize(
    ("toml", "environ", "flags", "named"),
    [
        ("[grpc]\nprot = 1", {}, {}, "grpc.prot; did you mean grpc.port?"),
        ("[gprc]\nport = 1", {}, {}, "gprc.port; did you mean grpc.port?"),
        ("port = 1", {}, {}, "unknown setting port"),
        ("", {"FIRSTTOKEN_GRPC__PROT": "1"}, {}, "FIRSTTOKEN_GRPC__PROT; did you mean FIRSTTOKEN_GRPC__PORT?"),
        ("", {"FIRSTTOKEN_GRPC_PORT": "1"}, {}, "FIRSTTOKEN_GRPC_PORT; did you mean FIRSTTOKEN_GRPC__PORT?"),
        ("", {}, {"grpc.prot": "1"}, "--grpc.prot; did you mean --grpc.port?"),
        ("grpc = 5", {}, {}, "unknown setting grpc"),
        ("[gprc]\n# port = 1", {}, {}, "gprc; did you mean grpc?"),
        ("[grpc", {}, {}, "not TOML"),
    ],
)
def test_what_is_no_knob_is_refused(
    tmp_path: Path, toml: str, environ: dict[str, str], flags: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, toml), environ, flags)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("grpc.port", "65536"),
        ("grpc.port", "-1"),
        ("grpc.port", "many"),
        ("scheduler.max_sequences", "0"),
        ("lifecycle.drain_grace", "nan"),
        ("lifecycle.drain_grace", "inf"),
        ("scheduler.watermark", "1.5"),
        ("telemetry.log_level", "loud"),
        ("http.enabled", "perhaps"),
    ],
)
def test_a_bad_value_names_knob_value_and_source(path: str, value: str) -> None:
    for environ, flags in (
        ({}, {path: value}),
        ({"FIRSTTOKEN_" + path.upper().replace(".", "__"): value}, {}),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(None, environ, flags)
        text = str(caught.value)
        assert text.startswith(f"{path}: ")
        assert repr(value) in text
        assert text.endswith(next(iter(environ), f"--{path}"))


@pytest.mark.parametrize(
    ("sections", "values"),
    [
        ({"scheduler": SchedulerConfig(step_tokens=8, max_sequences=16)}, ("8", "16")),
        ({"grpc": GrpcConfig(port=7000), "http": HttpConfig(port=7000)}, ("7000", "127.0.0.1")),
        ({"grpc": GrpcConfig(keepalive_time=10, keepalive_timeout=11)}, ("10.0", "11.0")),
    ],
)
def test_what_two_knobs_must_keep_names_both_values(sections: dict[str, Any], values: tuple[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        Config(**sections)
    assert all(value in str(caught.value) for value in values)


def test_both_ports_may_be_chosen_by_the_system() -> None:
    assert Config(grpc=GrpcConfig(port=0), http=HttpConfig(port=0)).http.port == 0


def test_the_printed_tree_reads_back_as_itself(tmp_path: Path) -> None:
    flags = {"grpc.host": 'od"d', "http.enabled": "false", "scheduler.watermark": "0.25"}
    loaded = load_config(None, {"FIRSTTOKEN_TEXT__THREADS": "3"}, flags)
    text = loaded.to_toml()
    assert 'host = "od\\"d"  # --grpc.host' in text
    assert "threads = 3  # FIRSTTOKEN_TEXT__THREADS" in text
    assert "port = 50051  # default" in text
    assert tomllib.loads(text) == loaded.config.model_dump()
    assert load_config(write(tmp_path, text), {}, {}).config == loaded.config


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load_config(tmp_path / "absent.toml", {}, {})


def test_flags_are_split_from_the_other_arguments() -> None:
    flags, rest = parse_flags(
        ["dir", "--grpc.port", "0", "--print-config", "--http.enabled=false", "--lifecycle.drain_delay=-1"]
    )
    assert flags == {"grpc.port": "0", "http.enabled": "false", "lifecycle.drain_delay": "-1"}
    assert rest == ["dir", "--print-config"]
    with pytest.raises(ConfigError, match=r"--grpc\.port needs a value"):
        parse_flags(["--grpc.port"])
    with pytest.raises(ConfigError, match=r"--grpc\.port needs a value"):
        parse_flags(["--grpc.port", "--print-config"])
    with pytest.raises(ConfigError, match=r"--grpc\.port is given twice: 1 and 2"):
        parse_flags(["--grpc.port", "1", "--http.enabled=true", "--grpc.port=2"])
