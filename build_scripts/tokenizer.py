"""tokenizer.json out of a checkpoint's own metadata.

GGUF names the pre-tokenizer instead of storing it; the splits below are the ones that llama.cpp attaches to the name
(llama-vocab.cpp), written in the vocabulary of the ``tokenizers`` library. No token is prepended: whether the model wants
one is told by ``TokenizerInfo.add_bos``, and the server decides.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from build_scripts.errors import CheckpointError, UnsupportedError
from engines.manifest import TokenizerInfo

if TYPE_CHECKING:
    from build_scripts.gguf_checkpoint import GgufCheckpoint


class TokenType(IntEnum):
    """What a vocabulary entry is, as GGUF counts."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


END_TEXTS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
"""Control tokens that end a turn or a text wherever they stand in a vocabulary, besides the file's own eos."""


def _digits_then_words() -> PreTokenizer:
    """Each digit alone, then GPT-2's split into words."""
    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])


def _words() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _llama3_words() -> PreTokenizer:
    return _words_with_digits(r"\p{N}{1,3}")


def _qwen2_words() -> PreTokenizer:
    return _words_with_digits(r"\p{N}")


def _words_with_digits(digits: str) -> PreTokenizer:
    """The split of GPT-4's family, which differs from model to model in how many digits stay together."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = Split(Regex(pattern), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS = {"smollm": _digits_then_words, "gpt-2": _words, "llama-bpe": _llama3_words, "qwen2": _qwen2_words}
"""By the name in tokenizer.ggml.pre."""
_COMPOSED = ("qwen2",)
"""Models whose text is put into Unicode's composed form first."""


def build_tokenizer(checkpoint: GgufCheckpoint) -> Tokenizer:
    """Raises UnsupportedError for a tokenizer of another kind, CheckpointError for a vocabulary that contradicts itself."""
    model = checkpoint.require("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise UnsupportedError(f'tokenizer.ggml.model = "{model}" is not implemented; there is "gpt2" (byte-level BPE)')
    name = checkpoint.get("tokenizer.ggml.pre", str) or ""
    if name not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f'tokenizer.ggml.pre = "{name}" is not implemented; there are {", ".join(PRE_TOKENIZERS)}'
        )
    tokens = _strings(checkpoint, "tokenizer.ggml.tokens")
    tokenizer = Tokenizer(_model(tokens, _strings(checkpoint, "tokenizer.ggml.merges")))
    if name in _COMPOSED:
        tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[name]()
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_tokens(_added_tokens(checkpoint, tokens))
    return tokenizer


def describe_tokenizer(checkpoint: GgufCheckpoint) -> TokenizerInfo:
    """Beginning and end, special tokens and the chat template, as the checkpoint states them."""
    tokens = _strings(checkpoint, "tokenizer.ggml.tokens")
    special = {tokens[index]: index for index in _of_type(checkpoint, TokenType.CONTROL)}
    end_ids = _end_ids(checkpoint, special)
    for index in end_ids:
        if not 0 <= index < len(tokens):
            raise CheckpointError(f"end-of-sequence id {index} is outside the vocabulary of {len(tokens)}")
    return TokenizerInfo(
        end_ids=end_ids,
        bos_id=checkpoint.get("tokenizer.ggml.bos_token_id", int),
        add_bos=checkpoint.get("tokenizer.ggml.add_bos_token", bool) or False,
        chat_template=checkpoint.get("tokenizer.chat_template", str),
        special_tokens=special,
    )


def _end_ids(checkpoint: GgufCheckpoint, special: dict[str, int]) -> tuple[int, ...]:
    """The file's eos first, then every other token that can only mean the end."""
    stated = [checkpoint.get(f"tokenizer.ggml.{name}_token_id", int) for name in ("eot", "eom")]
    known = [special[text] for text in END_TEXTS if text in special]
    ids = [
        checkpoint.require("tokenizer.ggml.eos_token_id", int),
        *(index for index in stated if index is not None),
        *known,
    ]
    return tuple(dict.fromkeys(ids))


def _model(tokens: list[str], merges: list[str]) -> BPE:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError(f"the vocabulary holds {len(tokens) - len(vocabulary)} tokens twice")
    pairs = [_pair(merge) for merge in merges]
    try:
        return BPE(vocab=vocabulary, merges=pairs, fuse_unk=False, byte_fallback=False, ignore_merges=False)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"vocabulary and merges contradict each other: {error}") from error


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space or not left or not right:
        raise CheckpointError(f"tokenizer.ggml.merges holds {merge!r:.40}, which is not two tokens")
    return left, right


def _added_tokens(checkpoint: GgufCheckpoint, tokens: list[str]) -> list[AddedToken]:
    """Tokens that are matched as whole texts before anything is split; control tokens are special, user-defined ones plain."""
    kinds = {TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
    added = [(index, special) for kind, special in kinds.items() for index in _of_type(checkpoint, kind)]
    return [AddedToken(tokens[index], special=special, normalized=False) for index, special in sorted(added)]


def _of_type(checkpoint: GgufCheckpoint, kind: TokenType) -> list[int]:
    types = checkpoint.require("tokenizer.ggml.token_type", list)
    tokens = checkpoint.require("tokenizer.ggml.tokens", list)
    if len(types) != len(tokens):
        raise CheckpointError(f"the file has {len(tokens)} tokens and the types of {len(types)}")
    return [index for index, value in enumerate(types) if value == kind]


def _strings(checkpoint: GgufCheckpoint, key: str) -> list[str]:
    values = checkpoint.require(key, list)
    if not values or not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{key} should be a list of texts")
    return values
