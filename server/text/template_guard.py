"""A Jinja2 environment in which a template can neither run code nor run on for ever.

The sandbox is Jinja2's; the bounds are ours. They count work, not time, so that the same conversation is always treated alike:
every turn of a loop and every call spends one unit of the render's budget, and no operator may make a huge value.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

BUDGET_NAME = "__budget__"
MAX_VALUE = 1 << 20
"""Characters, elements, or bits of a number, that a ``*`` or ``**`` in a template may make."""


class TemplateBoundError(Exception):
    """A render exceeded a bound."""


class RenderBudget:
    """How much work one render may still do. Not thread-safe: one render, one budget."""

    __slots__ = ("_left", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit

    def __call__(self) -> str:
        """What the guard calls at each loop turn; the work is counted where every call is, in GuardedEnvironment.call."""
        return ""

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TemplateBoundError(f"takes more than {self._limit} steps")


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """Renders need a RenderBudget under BUDGET_NAME."""

    intercepted_binops = frozenset(("*", "**"))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop's body begins with a call of the budget."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            budget = nodes.Name(BUDGET_NAME, "load", lineno=loop.lineno)
            turn = nodes.Call(budget, [], [], None, None, lineno=loop.lineno)
            loop.body.insert(0, nodes.ExprStmt(turn, lineno=loop.lineno))
        return tree

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        budget = context.get(BUDGET_NAME)
        if isinstance(budget, RenderBudget):
            budget.spend()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "*" and max(_elements(left) * _number(right), _elements(right) * _number(left)) > MAX_VALUE:
            raise TemplateBoundError(f"makes a value of more than {MAX_VALUE} elements")
        if operator == "**" and _bits(left) * _number(right) > MAX_VALUE:
            raise TemplateBoundError(f"makes a number of more than {MAX_VALUE} bits")
        return super().call_binop(context, operator, left, right)


def _elements(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 0
