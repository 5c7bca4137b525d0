"""`firsttoken serve ENGINE` before any rank starts: what is missing or does not fit is said in words, and nothing is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.e2e.process import ROOT, serve_command
from tests.trtllm.engines import FACTS, make_engine
from tests.trtllm.job import environment

PORTS = ("--grpc.port", "0", "--http.port", "0")


def run(folder: Path, *arguments: str, library: bool = True) -> subprocess.CompletedProcess[str]:
    command = serve_command(str(folder / "engine"), *PORTS, *arguments)
    told = environment(folder, library=library)
    return subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=120, check=False)


def test_without_the_library_one_sentence_says_how_to_get_it(tmp_path: Path) -> None:
    make_engine(tmp_path / "engine")
    done = run(tmp_path, library=False)
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert "TensorRT-LLM 1.2.1 is not installed here" in sentence
    assert "pip install 'firsttoken[trtllm]'" in sentence
    assert done.stdout == ""


def test_an_engine_for_other_gpus_is_refused_before_a_rank_starts_case_a3(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(FACTS, compute_capability="8.9", gpu_name="NVIDIA L40S", tp=4)
    make_engine(tmp_path / "engine", facts)
    done = run(tmp_path)
    assert done.returncode == 2
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["firsttoken serve"] * 2
    assert "engine needs tp=4·pp=1, so 4 GPUs, found 2" in done.stderr
    assert (
        "compiled for compute capability 8.9 (NVIDIA L40S), GPU 0 here is a NVIDIA H100 80GB HBM3 of 9.0" in done.stderr
    )
    assert "starting ranks" not in done.stdout + done.stderr


def test_a_damaged_rank_file_is_found_before_it_is_loaded(tmp_path: Path) -> None:
    make_engine(tmp_path / "engine")
    (tmp_path / "engine" / "rank0.engine").write_text("fake plan X")
    done = run(tmp_path)
    assert done.returncode == 2
    assert "rank0.engine has sha256" in done.stderr


def test_inspect_prints_engine_against_machine_case_a2(tmp_path: Path) -> None:
    make_engine(tmp_path / "engine", msgspec.structs.replace(FACTS, tensorrt="10.13.3.9"))
    command = [sys.executable, "-m", "firsttoken", "inspect", str(tmp_path / "engine")]
    told = environment(tmp_path)
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "note: TensorRT: engine 10.13.3.9, here 10.14.1.48" in done.stdout
    assert "problem: the engine was written by TensorRT 10.13.3.9, this machine has 10.14.1.48" in done.stdout
    assert "this machine cannot serve it" in done.stdout


def test_importing_firsttoken_needs_no_tensorrt_llm() -> None:
    code = (
        "import sys\n"
        "import firsttoken, firsttoken.cli, server.app, server.loading, engines.trtllm.loading, engines.trtllm.preflight\n"
        "sys.exit(any(name.split('.')[0] in ('tensorrt_llm', 'tensorrt', 'mpi4py', 'torch') for name in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, check=False).returncode == 0


@pytest.mark.parametrize("module", sorted((ROOT / "engines" / "trtllm").glob("*.py")), ids=lambda path: path.stem)
def test_native_alone_names_the_library_in_an_import(module: Path) -> None:
    imports = [line for line in module.read_text().splitlines() if "import" in line and "tensorrt_llm" in line]
    assert bool(
        [line for line in imports if "import_module(" in line or line.lstrip().startswith(("import", "from"))]
    ) == (module.stem == "native")
