"""The model's chat template: a conversation in, the one text that the model was trained to see out.

Templates are Jinja2 as Hugging Face writes them: blocks trimmed, loop controls, ``tojson`` that keeps Unicode,
``raise_exception``, ``strftime_now``, ``{% generation %}`` marks. They come with the model, not from clients; but models are
downloaded, so they run in Jinja2's immutable sandbox and with bounds on their work and their output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.meta
import msgspec
from jinja2 import nodes
from jinja2.parser import Parser

from server.errors import InvalidRequestError
from server.text.template_guard import BUDGET_NAME, GuardedEnvironment, RenderBudget, TemplateBoundError


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: str
    content: str
    extra: Mapping[str, object] = {}
    """Further keys that a template may read: tool_calls, tool_call_id, name."""


class Conversation(msgspec.Struct, frozen=True):
    """What a template renders."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[object, ...] = ()
    """As the template's model knows them: JSON values."""


class BadTemplateError(ValueError):
    """The template is no valid Jinja2. Raised at load, never for a request."""


class ChatTemplate:
    """A compiled template. Immutable; any thread may render."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        max_steps: int = 1_000_000,
        max_characters: int = 16 * 2**20,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """``special_tokens``: what the template knows by name, e.g. ``{"bos_token": "<s>", "eos_token": "</s>"}``.

        ``max_steps`` bounds loop turns and calls of one render, ``max_characters`` its output. ``now`` is the local time that
        ``strftime_now`` shows. Raises BadTemplateError.
        """
        environment = GuardedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationMarks]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise BadTemplateError(f"line {error.lineno} of the chat template: {error.message}") from error
        self._shows_tools = "tools" in jinja2.meta.find_undeclared_variables(environment.parse(source))
        self._special_tokens = dict(special_tokens or {})
        self._max_steps = max_steps
        self._max_characters = max_characters

    def render(self, conversation: Conversation | Sequence[ChatMessage], *, field: str = "prompt.messages") -> str:
        """The conversation's text, open for the assistant's next turn.

        Takes time in proportion to the conversation (TokenizerPool.encode_chat does it off the event loop). Raises
        InvalidRequestError naming ``field``: no message, a conversation that the template refuses, tools that it would not
        show, a bound exceeded.
        """
        if not isinstance(conversation, Conversation):
            conversation = Conversation(tuple(conversation))
        if conversation.tools and not self._shows_tools:
            raise InvalidRequestError(f"{field}.tools", "must be empty: the model's chat template shows no tools")
        if not conversation.messages:
            raise InvalidRequestError(field, "must hold at least 1 message, not 0")
        variables = {
            **self._special_tokens,
            "messages": [
                {"role": message.role, "content": message.content, **message.extra} for message in conversation.messages
            ],
            "tools": list(conversation.tools) or None,
            "add_generation_prompt": True,
            BUDGET_NAME: RenderBudget(self._max_steps),
        }
        try:
            return self._bounded(self._template.generate(variables))
        except TemplateBoundError as error:
            raise InvalidRequestError(field, f"rendered by the model's chat template, it {error}") from error
        except (jinja2.TemplateError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            # What a template does with a conversation that it was not written for is only known by trying.
            raise InvalidRequestError(field, f"the model's chat template refuses it: {error}") from error

    def _bounded(self, parts: Iterable[str]) -> str:
        kept: list[str] = []
        size = 0
        for part in parts:
            size += len(part)
            if size > self._max_characters:
                raise TemplateBoundError(f"is longer than {self._max_characters} characters")
            kept.append(part)
        return "".join(kept)


class _GenerationMarks(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's words for training; when serving it is its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja2's own, keeps Unicode and does not escape for HTML: models were trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
