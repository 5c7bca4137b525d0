"""What the server asks of a tokenizer, asked before a build: an engine that serve would refuse is not made."""

from __future__ import annotations

from tokenizers import Tokenizer

from build_scripts.errors import UnsupportedError
from engines.manifest import TokenizerInfo
from server.text.tokenizer import TextTokenizer, UnsupportedTokenizerError


def require_servable(tokenizer: Tokenizer, info: TokenizerInfo) -> None:
    """Raises UnsupportedError, in the server's words, for a tokenizer that it cannot stream. The tokenizer is left as it is."""
    try:
        TextTokenizer.from_json(tokenizer.to_str(), bos_id=info.bos_id if info.add_bos else None)
    except UnsupportedTokenizerError as error:
        raise UnsupportedError(f"tokenizer.json: {error}") from error
