"""The tokenizer of a Hugging Face directory: tokenizer.json as it is, and what the files beside it say of its special tokens.

The engine's tokenizer.json is the checkpoint's, read and written by the ``tokenizers`` library: whatever it says of special
tokens to add is not used by the server, which adds a beginning-of-sequence token where the manifest says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.hf_checkpoint import read_json
from build_scripts.tokenizer import END_TEXTS
from engines.manifest import TokenizerInfo

_PROBE = "a"


class HfTokenizer:
    """Opening reads the files and holds them against the embedding's ``rows``."""

    def __init__(self, directory: Path, config: dict[str, Any], rows: int) -> None:
        """``config`` is config.json. Raises CheckpointError, or UnsupportedError for a tokenizer of another kind."""
        self.tokenizer = _load(directory)
        self._directory = directory
        self._config = config
        self._special = {
            token.content: index for index, token in self.tokenizer.get_added_tokens_decoder().items() if token.special
        }
        self._check_ids(rows)
        self.info = self._describe(rows)

    def _check_ids(self, rows: int) -> None:
        text, index = max(self.tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        if index >= rows:
            raise CheckpointError(
                f"tokenizer.json and the model do not belong together: token {text!r:.40} has id {index}, "
                f"the embedding has {rows} rows"
            )

    def _describe(self, rows: int) -> TokenizerInfo:
        settings = _optional_json(self._directory / "tokenizer_config.json")
        end_ids = self._end_ids(_optional_json(self._directory / "generation_config.json"))
        for index in end_ids:
            if not 0 <= index < rows:
                raise CheckpointError(f"end-of-sequence id {index} is outside the vocabulary of {rows}")
        bos = self._bos_id(settings)
        return TokenizerInfo(
            end_ids=end_ids,
            bos_id=bos,
            add_bos=bos is not None and self.tokenizer.encode(_PROBE).ids[:1] == [bos],
            chat_template=self._chat_template(settings),
            special_tokens=self._special,
        )

    def _end_ids(self, generation: dict[str, Any]) -> tuple[int, ...]:
        """What generation_config.json says first, then config.json, then tokens that can only mean the end."""
        stated = [*_ids(generation.get("eos_token_id")), *_ids(self._config.get("eos_token_id"))]
        known = [self._special[text] for text in END_TEXTS if text in self._special]
        ids = tuple(dict.fromkeys([*stated, *known]))
        if not ids:
            raise CheckpointError("neither generation_config.json nor config.json names an eos_token_id")
        return ids

    def _bos_id(self, settings: dict[str, Any]) -> int | None:
        token = settings.get("bos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if text is not None:
            return self.tokenizer.token_to_id(str(text))
        stated = _ids(self._config.get("bos_token_id"))
        return stated[0] if stated else None

    def _chat_template(self, settings: dict[str, Any]) -> str | None:
        path = self._directory / "chat_template.jinja"
        if path.exists():
            return path.read_text(encoding="utf-8")
        template = settings.get("chat_template")
        if isinstance(template, list):  # several, by name
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = named.get("default")
        return template if isinstance(template, str) else None


def _load(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.exists():
        if (directory / "tokenizer.model").exists():
            raise UnsupportedError(
                "tokenizer.model alone is not implemented; save the fast form beside it "
                "(transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))"
            )
        raise CheckpointError(f"{directory.name} holds no tokenizer.json")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"cannot read tokenizer.json: {error}") from error


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _ids(value: Any) -> list[int]:  # noqa: ANN401 - a value of a JSON file: a number, a list of numbers or nothing
    values = value if isinstance(value, list) else [value]
    return [index for index in values if isinstance(index, int) and not isinstance(index, bool)]
