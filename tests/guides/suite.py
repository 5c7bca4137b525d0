"""The official JSON Schema test suite: what its schemas are and which documents each of them refuses.

The data beside this module are the suite's (MIT licence, ``json_schema_suite.LICENSE``), as the source distribution of PyPI's jsonschema
carries them. To take them anew::

    pip download --no-binary :all: --no-deps jsonschema==4.26.0
    python -m tests.guides.suite jsonschema-4.26.0.tar.gz
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).with_name("json_schema_suite.jsonl")
LICENSE = DATA.with_suffix(".LICENSE")
SDIST_SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
LEFT_OUT = (
    "ecmascript-regex.json",  # patterns of another dialect than that of the validator that checks us
    "content.json",  # what a string's own content is: an annotation, which nobody asserts
)


class Group(NamedTuple):
    """One schema of the suite."""

    file: str
    """Where it stands there, e.g. ``draft7/items.json``."""
    schema: dict[str, Any] | bool
    invalid: list[Any]
    """Documents that it refuses."""


def groups() -> list[Group]:
    """All schemas that are kept, in the suite's order."""
    with DATA.open(encoding="utf-8") as lines:
        return [Group(**json.loads(line)) for line in lines]


def take(sdist: Path) -> None:
    """Write the data out of the source distribution. Raises ValueError where it is another one."""
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        raise ValueError(f"{sdist}: must have the SHA-256 {SDIST_SHA256}, it has {digest}")
    with tarfile.open(sdist) as archive:
        kept = list(_read(archive))
        root = archive.getnames()[0].partition("/")[0]
        LICENSE.write_bytes(_member(archive, f"{root}/json/LICENSE"))
    lines = [json.dumps(group._asdict(), separators=(",", ":")) for group in kept]
    DATA.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read(archive: tarfile.TarFile) -> Iterator[Group]:
    for name in sorted(archive.getnames()):
        _, _, file = name.partition("/json/tests/")
        draft, _, rest = file.partition("/")
        if draft in DRAFTS and file.endswith(".json") and Path(rest).name not in LEFT_OUT:
            for group in json.loads(_member(archive, name)):
                yield Group(file, _named(group["schema"], draft), [t["data"] for t in group["tests"] if not t["valid"]])


def _named(schema: dict[str, Any] | bool, draft: str) -> dict[str, Any] | bool:
    """The suite says a schema's draft by its folder; a schema that stands alone must say it itself."""
    return schema if isinstance(schema, bool) else {"$schema": DRAFTS[draft], **schema}


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name}: is no file of the archive")
    return file.read()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
