"""Chat templates: what the model was trained on, comes out; what a template must not do, it cannot."""

from __future__ import annotations

from datetime import datetime

import pytest

from server.errors import InvalidRequestError
from server.text.chat import BadTemplateError, ChatMessage, ChatTemplate, Conversation

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = [ChatMessage("user", "Hi")]


def render(source: str, messages: list[ChatMessage] | None = None) -> str:
    return ChatTemplate(source).render(USER if messages is None else messages)


def test_smollm2_adds_its_own_system_turn() -> None:
    assert render(SMOLLM2) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_smollm2_keeps_a_system_turn_that_is_given() -> None:
    messages = [ChatMessage("system", "Be brief."), *USER, ChatMessage("assistant", "Hello."), ChatMessage("user", "?")]
    assert render(SMOLLM2, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_blocks_are_trimmed_and_loop_controls_work() -> None:
    source = "  {% for n in range(9) %}\n  {% if n == 2 %}{% break %}{% endif %}\n{{ n }};\n  {% endfor %}\nend"
    assert render(source) == "0;\n1;\nend"


def test_json_keeps_unicode_and_is_not_escaped_for_html() -> None:
    assert render("{{ {'k': 'é<&>\\''} | tojson }}") == '{"k": "é<&>\'"}'
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'


def test_the_date_is_the_local_one_in_the_templates_format() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 3, 9))  # noqa: DTZ001 - local time
    assert template.render(USER) == "09 Mar 2026"


def test_special_tokens_go_by_their_names() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})
    assert template.render(USER) == "<s>Hi"


def test_generation_marks_are_no_text() -> None:
    assert render("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c") == "abuserc"


def test_content_is_text_and_never_a_template() -> None:
    assert render("{{ messages[0].content }}", [ChatMessage("user", "{{ 7 * 7 }}{% for %}")]) == "{{ 7 * 7 }}{% for %}"


def test_no_message_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt\.messages: must hold at least 1 message, not 0$"):
        render(SMOLLM2, [])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content.x }}", "has no element 7"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + 1 }}", "can only concatenate"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_conversation_that_the_template_refuses_is_the_clients_error(source: str, said: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=rf"^prompt\.messages: the model's chat template refuses it: .*{said}"
    ):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.__init__.__globals__ }}",
        "{% for k in cycler.__init__.__globals__ %}{% endfor %}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
    ],
)
def test_templates_reach_nothing_beyond_the_conversation(source: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"is unsafe|not safely callable"):
        render(source)


def test_a_template_that_is_no_template_is_refused_at_load() -> None:
    with pytest.raises(BadTemplateError, match=r"^line 2 of the chat template: "):
        ChatTemplate("fine\n{% if %}")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "takes more than 1000 steps",
        ),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}", "1000 steps"),
        ("{% for m in range(900) %}{{ '0123456789' }}{% endfor %}", "is longer than 5000 characters"),
        ("{{ 'a' * 99999999999 }}", "more than 1048576 elements"),
        ("{{ 99999999 * [1] }}", "more than 1048576 elements"),
        ("{{ 9 ** (9 ** 9) }}", "more than 1048576 bits"),
    ],
)
def test_a_template_that_runs_away_is_stopped(source: str, said: str) -> None:
    template = ChatTemplate(source, max_steps=1000, max_characters=5000)
    with pytest.raises(InvalidRequestError, match=said):
        template.render(USER)


def test_the_bounds_are_counted_afresh_for_each_render() -> None:
    template = ChatTemplate("{% for n in range(900) %}x{% endfor %}", max_steps=1000)
    assert [len(template.render(USER)) for _ in range(3)] == [900] * 3


def test_loop_variables_and_filters_survive_the_guard() -> None:
    source = "{% for n in [3, 1] if n > 1 %}{{ loop.index }}/{{ loop.length }}:{{ n }}{% else %}none{% endfor %}"
    assert render(source) == "1/1:3"
    assert render("{% for n in [] %}{{ n }}{% else %}none{% endfor %}") == "none"
    assert (
        render("{% set ns = namespace(x=0) %}{% for n in [1, 2] %}{% set ns.x = ns.x + n %}{% endfor %}{{ ns.x }}")
        == "3"
    )


TOOLS = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls %} [{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}{{ '\n' }}{% endfor %}"
)


def test_tools_and_calls_are_shown_as_the_template_takes_them() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    conversation = Conversation(
        (
            ChatMessage("user", "Rain?"),
            ChatMessage("assistant", "", {"tool_calls": [call]}),
            ChatMessage("tool", "no", {"tool_call_id": "1"}),
        ),
        ({"type": "function", "function": {"name": "weather"}},),
    )
    assert ChatTemplate(TOOLS).render(conversation) == (
        '[{"type": "function", "function": {"name": "weather"}}]\n'
        'user: Rain?\nassistant:  [weather {"city": "Zürich"}]\ntool: no\n'
    )


def test_tools_that_the_template_would_not_show_are_refused_by_name() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(InvalidRequestError, match=r"prompt\.messages\.tools: .* shows no tools"):
        template.render(Conversation((ChatMessage("user", "x"),), ({"name": "t"},)))
