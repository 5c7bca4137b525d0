"""An OpenAI server with known timing. Events are cut at awkward places, as TCP may; ``--fail N`` answers N-token requests with 429;
``--hang-up kept`` lets go of a connection whenever a second request comes on it, ``--hang-up always`` at every request."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from weakref import WeakSet

from aiohttp import web


class Fake:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.served: WeakSet[asyncio.BaseTransport] = WeakSet()
        """Connections that have carried a request."""

    async def models(self, request: web.Request) -> web.Response:
        self._hangs_up(request)
        return web.json_response({"data": [{"id": "fake", "meta": {"n_vocab": 5000, "n_ctx_train": 2048}}]})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self._hangs_up(request):
            raise ConnectionResetError
        if body["max_tokens"] == self.options.fail:
            return web.json_response({"error": "too many"}, status=429)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(body["max_tokens"]):
            await asyncio.sleep(self.options.gap)
            await self._send(response, {"choices": [self._choice(body, self.options.word or f" w{number}")]})
        prompt = body.get("prompt") or body["messages"][0]["content"]
        count = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        usage = {
            "prompt_tokens": count,
            "completion_tokens": body["max_tokens"] * self.options.tokens_per_event,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        await self._send(response, {"choices": [], "usage": usage})
        if not self.options.cut:
            await response.write(b"data: [DONE]\n\n")
        return response

    def _hangs_up(self, request: web.Request) -> bool:
        """Whether the connection was closed instead of an answer."""
        connection = request.transport
        if connection is None:
            return True
        kept = connection in self.served
        self.served.add(connection)
        if request.method == "POST" and (self.options.hang_up == "always" or (kept and self.options.hang_up == "kept")):
            connection.close()
            return True
        return False

    @staticmethod
    def _choice(body: dict[str, object], text: str) -> dict[str, object]:
        return {"text": text} if "prompt" in body else {"delta": {"content": text}}

    @staticmethod
    async def _send(response: web.StreamResponse, event: dict[str, object]) -> None:
        data = f"data: {json.dumps(event)}\n\n".encode()
        await response.write(data[:7])
        await response.write(data[7:])


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gap", type=float, default=0.005)
    parser.add_argument("--fail", type=int, default=-1)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--word", default="")
    parser.add_argument("--cut", action="store_true")
    parser.add_argument("--hang-up", choices=("kept", "always"))
    fake = Fake(parser.parse_args())
    app = web.Application()
    app.router.add_get("/v1/models", fake.models)
    app.router.add_post("/v1/completions", fake.generate)
    app.router.add_post("/v1/chat/completions", fake.generate)
    runner = web.AppRunner(app, handler_cancellation=True)  # who has gone is not answered to the end
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    print(port, flush=True)  # noqa: T201 - how the test learns it
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
