"""What calls take, typed: one place for the sync and the async client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from firsttoken.client.values import Message, Priority, Retention

Conversation: TypeAlias = "Sequence[Message | Mapping[str, Any]]"
"""Turns, oldest first; a mapping has the keys ``role`` and ``content``, and whatever else the model's template reads."""
Tools: TypeAlias = "str | Sequence[Mapping[str, object]]"
"""The tools that the model may call, as the template knows them: a list, or its JSON text."""


class GenerateOptions(TypedDict, total=False):
    """What generate() takes beside the prompt. What is left out takes the server's default."""

    messages: Conversation
    """A conversation instead of a prompt; the model's chat template renders it."""
    tools: Tools
    """With ``messages`` only; refused where the model's template shows none."""
    n: int
    """How many outputs for the one prompt; each delta says by its ``index`` whose it is. 1 by default."""
    max_tokens: int
    """At most this many tokens of output. 0 only computes the prompt, so that its prefix is cached."""
    temperature: float
    """0 (the default) takes the likeliest token each time; up to 100."""
    top_k: int
    """Draw among the k likeliest; 0 = all."""
    top_p: float
    """Draw among the smallest set of likeliest tokens with at least this probability together."""
    min_p: float
    """Draw among tokens at least this fraction as likely as the likeliest."""
    seed: int
    """The same seed, prompt and options give the same tokens. Without one the server draws one and tells it in Final."""
    repetition_penalty: float
    """Divides the positive logits of tokens in prompt or output, multiplies the negative ones; 1 changes nothing."""
    presence_penalty: float
    """Taken off the logit of each token in the output."""
    frequency_penalty: float
    """Taken off the logit of each token as often as the output holds it."""
    no_repeat_ngram: int
    """No run of this many tokens comes twice; 0 = any may."""
    logit_bias: Mapping[int, float]
    """Token id -> what is added to its logit; -100 forbids it."""
    bad_words: Sequence[str]
    """Texts that must not come, as the tokenizer writes them."""
    bad_tokens: Sequence[Sequence[int]]
    """Runs of token ids that must not come."""
    logprobs: int
    """Log-probability of each token, and so many of the likeliest beside it; 0 = of the chosen one alone."""
    prompt_logprobs: bool
    """Of the prompt's tokens as well (:attr:`Stream.prompt`); implies ``logprobs``. Such a prompt is computed whole, whatever is cached."""
    echo: bool
    """Give the prompt back, text and ids (:attr:`Stream.prompt`)."""
    stop: str | Sequence[str]
    """The output ends before the first of these."""
    stop_token_ids: Sequence[int]
    include_stop: bool
    """The output ends behind the stop instead of before it."""
    min_tokens: int
    """No end can be drawn before the output has this many tokens."""
    ignore_end: bool
    """Go on after the model's end-of-sequence token."""
    json_schema: str | Mapping[str, object]
    """The output is a JSON document that this schema accepts. At most one of this and the next three."""
    regex: str
    """The whole output matches this regular expression."""
    grammar: str
    """The output is of this Lark grammar."""
    choice: Sequence[str]
    """The output is one of these texts."""
    truncate_prompt: int
    """Keep only the last so many tokens of the prompt; left out, one that is too long is refused."""
    model: str
    """The served model's name, where it matters that it is no other."""
    adapter: str
    """The name of a LoRA adapter that the server has loaded."""
    request_id: str
    """A name for this request, unique among those alive; it is in the server's logs and errors."""
    priority: Priority | str
    """A Priority or its value, e.g. ``"batch"``."""
    cache_salt: str
    """Prefixes are shared only between requests of equal salt."""
    retention: Sequence[Retention]
    """Which stretches of the prompt are worth keeping in the prefix cache: in order, not overlapping."""
    ttft_deadline: float
    """Seconds within which the first token must be out, or the call ends with DeadlineError."""
    timeout: float
    """Seconds that the whole call may take, retries included; ``math.inf`` = no limit. Left out: the client's own."""


class PrefixOptions(TypedDict, total=False):
    """Whose prefix it is: requests find it only under the same salt and tenant."""

    messages: Conversation
    """A conversation instead of a prompt."""
    tools: Tools
    """As for GenerateOptions."""
    cache_salt: str
    tenant: str
    """The tenant whose requests are to find it, by its name in the server's access file; left out: the caller."""
