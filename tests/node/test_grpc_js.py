"""An independent gRPC stack, in JavaScript, against both wires. Skipped where node or npm, or the registry, is not there."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from tests.e2e.whole_server import ENGINES, say, serving
from tests.fakes.running import collect, until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE, NPM = shutil.which("node"), shutil.which("npm")
INVALID_ARGUMENT, CANCELLED = 3, 1
pytestmark = pytest.mark.skipif(NODE is None or NPM is None, reason="node and npm are not installed")


async def run(*command: str, cwd: Path = HERE) -> tuple[int, str, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, stdout=pipe, stderr=pipe)
    out, error = await process.communicate()
    return process.returncode or 0, out.decode(), error.decode()


async def installed() -> None:
    """Once, into a folder that git ignores."""
    if (HERE / "node_modules" / "@grpc" / "grpc-js").is_dir():
        return
    code, _, error = await run(NPM or "npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent")
    if code:
        pytest.skip(f"npm could not install @grpc/grpc-js: {error.strip().splitlines()[-1:]}")


@pytest.mark.parametrize("engine", ENGINES)
async def test_streams_inference_and_cancel(engine: str) -> None:
    await installed()
    async with serving(engine, "laptop", lifecycle__warm_up=False) as (app, stub):
        _, expected, _ = await collect(
            stub.Generate(say("Tell me", max_tokens=30, sampling=pb.Sampling(temperature=1.0, seed=11)))
        )
        code, out, error = await run(NODE or "node", "client.js", f"127.0.0.1:{app.grpc_port}", str(ROOT))
        assert code == 0, error
        seen = json.loads(out)
        assert seen["stream"] == {"text": expected, "tokens": 30, "final": "FINISH_REASON_LENGTH", "code": 0}
        assert seen["complete"] == seen["infer"] == seen["infer_stream"] == expected
        assert seen["refused"]["code"] == INVALID_ARGUMENT
        assert seen["refused"]["details"].startswith("max_tokens: ")
        assert seen["cancel"]["code"] == CANCELLED
        assert seen["cancel"]["heard"] >= 3
        await until(lambda: not app._open_streams())
