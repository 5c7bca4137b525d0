"""OpenAI's HTTP API with server-sent events, as llama.cpp, vLLM, SGLang and others speak it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec

from loadtest.errors import TargetError, WorkloadError
from loadtest.record import OK, Usage
from loadtest.transports.base import Ask, Call, LoadSample, Measurement, Target, TargetFacts

CONNECT_SECONDS = 10.0


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Meta(msgspec.Struct):
    n_vocab: int | None = None
    n_ctx_train: int | None = None


class _Model(msgspec.Struct):
    id: str
    meta: _Meta | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_decode_event = msgspec.json.Decoder(_Event).decode


class HttpCall:
    """One request as a task."""

    def __init__(self, measurement: Measurement) -> None:
        self._measurement = measurement
        self._over = False
        self.reused = False
        """Went out on a connection that had carried requests before."""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self, status: str, detail: str) -> None:
        self.finish(status, detail, time.monotonic())
        if self.task is not None:
            self.task.cancel()

    def finish(self, status: str, detail: str, now: float) -> None:
        """Only the first counts."""
        if not self._over:
            self._over = True
            if self.timer is not None:
                self.timer.cancel()
            self._measurement.on_over(status, detail, now)


async def _mark_reused(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceConnectionReuseconnParams
) -> None:
    context.trace_request_ctx.reused = True


class OpenaiTransport:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._endpoint = target.endpoint or "completions"
        if self._endpoint not in {"completions", "chat"}:
            raise TargetError(f"--endpoint: openai has completions and chat, not {target.endpoint!r}")
        self.takes_ids = self._endpoint == "completions"
        base = target.address if "://" in target.address else f"http://{target.address}"
        self._base = base.rstrip("/").removesuffix("/v1")
        self._url = f"{self._base}/v1/" + ("completions" if self.takes_ids else "chat/completions")
        self._model = target.model
        self._http: aiohttp.ClientSession | None = None

    async def open(self) -> TargetFacts:
        context = self._target.security.context() if self._target.security.tls else None
        connector = aiohttp.TCPConnector(limit=0, ssl=context or True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_mark_reused)
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=self._target.headers, trace_configs=[tracing]
        )
        try:
            async with self._http.get(f"{self._base}/v1/models") as response:
                body = await response.read()
                if response.status != 200:
                    raise TargetError(f"{self._base}/v1/models: HTTP {response.status}")
            models = msgspec.json.decode(body, type=_Models).data
        except (aiohttp.ClientError, msgspec.MsgspecError, OSError) as error:
            raise TargetError(f"cannot reach {self._base}: {error}") from error
        if not models:
            raise TargetError(f"{self._base} serves no model")
        chosen = next((each for each in models if each.id == self._model), None) if self._model else models[0]
        if chosen is None:
            raise TargetError(f"--model: {self._model!r} is none of {', '.join(each.id for each in models)}")
        self._model = chosen.id
        meta = chosen.meta or _Meta()
        return TargetFacts("openai", chosen.id, "", meta.n_vocab, chosen.max_model_len or meta.n_ctx_train)

    def encode(self, ask: Ask) -> bytes:
        if ask.priority != "interactive":
            raise WorkloadError(f"--classes: this protocol cannot say {ask.priority!r}")
        if ask.ttft_deadline is not None:
            raise WorkloadError("--ttft-deadline: this protocol cannot say it; --deadline is kept by the client")
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if ask.ignore_end:
            body["ignore_eos"] = True
        if ask.salt:
            body["cache_salt"] = ask.salt
        prompt = ask.text if ask.ids is None else ask.ids.tolist()
        if self.takes_ids:
            body["prompt"] = prompt
        else:
            body["messages"] = [{"role": "user", "content": prompt}]
        return msgspec.json.encode(body)

    async def start(self, ask: Ask, body: bytes, measurement: Measurement) -> Call:
        call = HttpCall(measurement)
        loop = asyncio.get_running_loop()
        call.task = loop.create_task(self._request(ask, body, measurement, call))
        if ask.deadline is not None:
            call.timer = loop.call_later(ask.deadline, call.cancel, "DEADLINE_EXCEEDED", "the client's deadline passed")
        return call

    async def _request(self, ask: Ask, body: bytes, measurement: Measurement, call: HttpCall) -> None:
        if self._http is None:
            raise TargetError("not open")
        headers = {"content-type": "application/json"}
        while True:
            answered, call.reused = False, False
            try:
                async with self._http.post(self._url, data=body, headers=headers, trace_request_ctx=call) as response:
                    answered = True
                    await self._answer(response, ask, measurement, call)
            except (aiohttp.ClientError, OSError) as error:
                if call.reused and not answered:
                    # The server let the kept connection go as the request was on its way, as some do after so many or so long:
                    # nothing that the server did with this request. On a fresh connection it counts.
                    continue
                call.finish("UNAVAILABLE", str(error), time.monotonic())
            return

    async def _answer(
        self, response: aiohttp.ClientResponse, ask: Ask, measurement: Measurement, call: HttpCall
    ) -> None:
        if response.status != 200:
            call.finish(f"HTTP {response.status}", (await response.text())[:500], time.monotonic())
        else:
            await self._stream(response, ask, measurement, call)

    async def _stream(
        self, response: aiohttp.ClientResponse, ask: Ask, measurement: Measurement, call: HttpCall
    ) -> None:
        rest = b""
        async for chunk in response.content.iter_any():
            now = time.monotonic()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data:") and not self._event(line[5:].strip(), now, measurement, call):
                    return
            if ask.stalls:
                await asyncio.get_running_loop().create_future()  # until cancelled: nobody reads any more
        call.finish("UNAVAILABLE", "the stream ended without [DONE]", time.monotonic())

    def _event(self, data: bytes, now: float, measurement: Measurement, call: HttpCall) -> bool:
        """Take one event; False when it was the last."""
        if data == b"[DONE]":
            call.finish(OK, "", now)
            return False
        try:
            event = _decode_event(data)
        except msgspec.MsgspecError as error:
            call.finish("INTERNAL", f"an event that is not OpenAI's: {error}", now)
            return False
        if event.error is not None:
            call.finish("STREAM_ERROR", str(event.error)[:500], now)
            return False
        if event.choices:
            choice = event.choices[0]
            text = choice.text or (choice.delta.content if choice.delta is not None else None)
            if text:
                measurement.on_content(1, now, text=text)
        if (usage := event.usage) is not None:
            details = usage.prompt_tokens_details or _Details()
            measurement.on_usage(Usage(usage.prompt_tokens, details.cached_tokens, usage.completion_tokens))
        return True

    async def load(self) -> LoadSample | None:
        return None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
