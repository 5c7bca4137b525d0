"""Small real tokenizers, built on the spot: one of each family that can be streamed."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "the quick brown fox jumps over the lazy dog; the end.",
    "日本語のテキスト 中文字符 한국어",
    "👨‍👩‍👧‍👦 😀😃 🇫🇷 café naïve e\u0301 مرحبا بالعالم नमस्ते",
]


@cache
def byte_level() -> Tokenizer:
    """GPT-2's family: 256 byte tokens and a few hundred merges, with a non-special added token that holds a space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.add_tokens([AddedToken("<a tool>", special=False, normalized=False)])
    return tokenizer


def _sentence_piece_vocabulary() -> dict[str, int]:
    names = [*SPECIALS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", "▁▁", "▁the", "▁brown", "brown", "own", "▁fox", "fox", "é", "日", "▁日", "本", ".", "a", "▁a"]
    names += [chr(code) for code in range(0x62, 0x7B)]
    return {name: index for index, name in enumerate(dict.fromkeys(names))}


def _bpe_of(vocabulary: dict[str, int], byte_fallback: bool) -> Tokenizer:
    model = models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return tokenizer


@cache
def llama2_like(strip: int = 1) -> Tokenizer:
    """Llama 2's family; ``strip=0`` gives Gemma's decoder."""
    tokenizer = _bpe_of(_sentence_piece_vocabulary(), byte_fallback=True)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        steps.append(decoders.Strip(" ", strip, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


@cache
def metaspace(prepend_scheme: str = "always") -> Tokenizer:
    """T5's family: no byte tokens."""
    names = [name for name in _sentence_piece_vocabulary() if not name.startswith("<0x")]
    tokenizer = _bpe_of({name: index for index, name in enumerate(names)}, byte_fallback=False)
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme)
    return tokenizer


def all_families() -> dict[str, Tokenizer]:
    return {
        "byte-level": byte_level(),
        "llama2": llama2_like(),
        "llama2-strip-2": llama2_like(strip=2),
        "gemma": llama2_like(strip=0),
        "metaspace-always": metaspace(),
        "metaspace-never": metaspace("never"),
    }
