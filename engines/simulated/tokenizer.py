"""A byte-level tokenizer for the simulated engines, so that a whole server can run on them: one token a byte, and three specials."""

from __future__ import annotations

from engines.manifest import TokenizerInfo

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END_OF_TEXT, TURN_START, TURN_END)
VOCAB_SIZE = 256 + len(SPECIALS)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_LETTERS = "etaoin shrdlu etaoin cmfwyp vbgkqjxz ETAOIN e a i . , '\n"
"""What the simulated model says, the commoner the oftener."""


def tokenizer_json() -> str:
    """A complete ``tokenizer.json``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = _byte_alphabet()
    vocab = {character: token for token, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return tokenizer.to_str()


def tokenizer_info() -> TokenizerInfo:
    ids = {name: 256 + at for at, name in enumerate(SPECIALS)}
    return TokenizerInfo(
        end_ids=(ids[END_OF_TEXT], ids[TURN_END]),
        bos_id=None,
        add_bos=False,
        chat_template=CHAT_TEMPLATE,
        special_tokens=ids,
    )


def text_alphabet() -> tuple[int, ...]:
    """Ids for ``Language(alphabet=…)``: letters and spaces about as often as English has them."""
    return tuple(_LETTERS.encode())


def _byte_alphabet() -> list[str]:
    """Byte-level BPE's printable stand-in for each byte value, in byte order: token id = byte value.

    Bytes that print stand for themselves, the others for the characters from U+0100 on, as in GPT-2's encoder.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + hidden.index(byte)) for byte in range(256)]
