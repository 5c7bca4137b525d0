"""``stop_words_list`` and ``bad_words_list`` of the model that takes token ids: TensorRT-LLM's tensors of words."""

from __future__ import annotations

from collections.abc import Sequence

from protos.firsttoken.v1 import generation_pb2 as pb
from server.errors import InvalidRequestError
from server.rpc.kserve.inputs import Inputs
from server.rpc.limits import RequestLimits
from server.rpc.prompts import check_ids
from server.text.tokenizer import TextTokenizer

STOPS = "stop_words_list"
BANS = "bad_words_list"


def set_stop_words(stop: pb.Stop, inputs: Inputs, limits: RequestLimits, tokenizer: TextTokenizer) -> None:
    """A word of one token stops at that token; a longer one at its text, wherever the output's tokens part it.

    Event loop; a word costs microseconds, and their number and length are bounded. Raises InvalidRequestError.
    """
    for word in read_words(inputs, STOPS):
        if len(word) == 1:
            stop.token_ids.append(word[0])
            continue
        check_ids(STOPS, word, limits.vocab_size)
        if len(word) > limits.max_stop_string_bytes:
            raise InvalidRequestError(
                STOPS, f"must have words of at most {limits.max_stop_string_bytes} tokens, one has {len(word)}"
            )
        if len(stop.strings) >= limits.max_stop_strings:
            raise InvalidRequestError(STOPS, f"must have at most {limits.max_stop_strings} words of several tokens")
        stop.strings.append(_spell(tokenizer, word))


def read_words(inputs: Inputs, name: str) -> list[list[int]]:
    """Of the form [2, n]: all words' tokens in one row, where each word ends in the other, both padded (ends by -1)."""
    values = inputs.ids(name)
    if not values:
        return []
    if inputs.shape(name)[-2:-1] != (2,):
        raise InvalidRequestError(name, f"must have the shape [2, n] or [1, 2, n], it has {list(inputs.shape(name))}")
    half = len(values) // 2
    tokens, ends = values[:half], [end for end in values[half:] if end >= 0]
    starts = [0, *ends[:-1]]
    if any(not start < end <= half for start, end in zip(starts, ends, strict=True)):
        raise InvalidRequestError(name, f"must have ascending ends from 1 to {half}, they are {ends[:20]}")
    return [tokens[start:end] for start, end in zip(starts, ends, strict=True)]


def _spell(tokenizer: TextTokenizer, word: Sequence[int]) -> str:
    """The word's text amid an output: at its beginning a tokenizer may drop a space."""
    detokenizer = tokenizer.detokenizer(word)
    text = "".join(map(detokenizer.feed, word))
    if not text or detokenizer.finish() or "\ufffd" in text:
        raise InvalidRequestError(
            STOPS, f"must have words of 1 token, or such as spell whole characters; {list(word[:20])} do not"
        )
    return text
