"""A model by its name on the Hugging Face hub, through huggingface_hub and its cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from build_scripts.errors import SourceError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "README.md", "LICENSE*")
"""What a build reads; other formats of the same weights are left on the hub."""


def is_hub_name(model: str) -> bool:
    """owner/name, and no such path here."""
    return _NAME.fullmatch(model) is not None and not Path(model).exists()


def fetch(model: str, progress: Callable[[str], None]) -> Path:
    """The directory of a snapshot, downloaded where the cache lacks it; an interrupted download goes on where it stopped.

    Raises SourceError saying what to do without a network, or for a model that is not there or wants a token.
    """
    from huggingface_hub import snapshot_download

    progress(f"fetching {model} from the Hugging Face hub")
    try:
        return Path(snapshot_download(model, allow_patterns=list(_WANTED)))
    except Exception as error:
        raise SourceError(_what_to_do(model, error)) from error


def _what_to_do(model: str, error: Exception) -> str:
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return f"{model} is gated: accept its terms on https://huggingface.co/{model} and set HF_TOKEN"
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return f"{model} is not on the Hugging Face hub, or private: check the name, or set HF_TOKEN"
    return (
        f"{model} could not be fetched ({kind}); without a network, run `hf download {model} --local-dir DIR` elsewhere and "
        "give the path of that directory"
    )
