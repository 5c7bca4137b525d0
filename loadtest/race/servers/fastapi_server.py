"""The home-made server that everybody writes first: FastAPI around transformers' generate, one call a request, one at a time.

Runs in the peer's environment: ``python fastapi_server.py GGUF PORT THREADS``. Speaks OpenAI's completions with token ids.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastapi
import fastapi.responses
import torch
import transformers
import uvicorn

LOCK = threading.Lock()
app = fastapi.FastAPI()


class Streamer(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc]  # transformers' class is Any to us
    """Hands over each token as generate puts it."""

    def __init__(self) -> None:
        self.tokens: list[int | None] = []
        self.more = threading.Semaphore(0)
        self._prompt = True

    def put(self, value: Any) -> None:  # noqa: ANN401 - a tensor
        if self._prompt:
            self._prompt = False
            return
        for token in value.flatten().tolist():
            self.tokens.append(int(token))
            self.more.release()

    def end(self) -> None:
        self.tokens.append(None)
        self.more.release()


def load(path: Path) -> tuple[Any, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    return tokenizer, model.eval()


@app.get("/v1/models")
def models() -> dict[str, Any]:
    return {"data": [{"id": "smollm2", "meta": {"n_vocab": 49152, "n_ctx_train": 8192}}]}


@app.post("/v1/completions")
def completions(body: dict[str, Any]) -> fastapi.responses.StreamingResponse:
    return fastapi.responses.StreamingResponse(events(body), media_type="text/event-stream")


def events(body: dict[str, Any]) -> Iterator[bytes]:
    tokenizer, model = app.state.loaded
    ids = torch.tensor([body["prompt"]])
    count = int(body["max_tokens"])
    streamer = Streamer()

    def generate() -> None:
        with LOCK, torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                streamer=streamer,
            )

    threading.Thread(target=generate, daemon=True).start()
    place = 0
    while True:
        streamer.more.acquire()
        token = streamer.tokens[place]
        place += 1
        if token is None:
            break
        yield event({"choices": [{"text": tokenizer.decode([token]) or "\u200b"}]})
    yield event({"choices": [], "usage": {"prompt_tokens": ids.shape[1], "completion_tokens": place - 1}})
    yield b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def main() -> None:
    path, port, threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    app.state.loaded = load(path)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
