"""Reading GGUF: dense bits are kept, broken files end in one sentence, whatever is broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from build_scripts import gguf_checkpoint
from build_scripts.errors import BuildError, CheckpointError, UnsupportedError
from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.gguf_description import describe
from build_scripts.tokenizer import build_tokenizer, describe_tokenizer
from build_scripts.weights import Dense
from tests.build.tiny_gguf import Kind, write_tiny_gguf


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_both_ways_of_reading_are_the_librarys_numbers(kind: Kind, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", matrices=kind)
    checkpoint = GgufCheckpoint(path)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name in ("blk.0.ffn_down.weight", "blk.1.attn_v.weight", "output_norm.weight", "token_embd.weight"):
        expected = gguf.dequantize(stored[name].data, stored[name].tensor_type)
        np.testing.assert_array_equal(checkpoint.read_float32(name), expected.reshape(checkpoint.shapes()[name]))
        # d * code + m against (code + m / d) * d: the last bit may differ, no more.
        np.testing.assert_allclose(checkpoint.read(name).to_float32(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("kind", "dtype"), [(Kind.F16, np.float16), (Kind.BF16, np.uint16), (Kind.F32, np.float32)])
def test_dense_tensors_keep_their_bits(kind: Kind, dtype: type, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", matrices=kind)
    name = "blk.0.ffn_up.weight"
    weight = GgufCheckpoint(path).read(name)
    stored = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    assert isinstance(weight, Dense)
    assert weight.values.dtype == dtype
    assert weight.values.tobytes() == np.ascontiguousarray(stored.data).tobytes()


def test_query_and_key_rows_come_in_half_split_order(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", matrices=Kind.F32)
    stored = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.0.attn_q.weight")
    rows = stored.data.reshape(64, 64)
    read = GgufCheckpoint(path).read_float32("blk.0.attn_q.weight")
    # Head 1 holds rows 32..63, interleaved: its first half is the even ones.
    np.testing.assert_array_equal(read[32:48], rows[32:64:2])
    np.testing.assert_array_equal(read[48:64], rows[33:64:2])


def test_a_format_without_exact_form_is_refused_with_a_way_out(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", matrices=Kind.Q5_0)
    checkpoint = GgufCheckpoint(path)
    with pytest.raises(UnsupportedError, match=r"Q5_0.*--weights f32"):
        checkpoint.read("blk.0.ffn_up.weight")
    assert checkpoint.read_float32("blk.0.ffn_up.weight").shape == (96, 64)


@cache
def whole_file() -> bytes:
    with TemporaryDirectory() as directory:
        return write_tiny_gguf(Path(directory) / "tiny.gguf").read_bytes()


def read_all(path: Path) -> None:
    checkpoint = GgufCheckpoint(path)
    for name in describe(checkpoint).tensors():
        checkpoint.read(name)
    build_tokenizer(checkpoint)
    describe_tokenizer(checkpoint)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.9999))
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole_file()[: int(len(whole_file()) * share)])
    with pytest.raises(CheckpointError):
        read_all(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), junk=st.binary(min_size=1, max_size=16), in_header=st.booleans())
def test_a_damaged_file_is_read_or_refused_never_worse(
    place: float, junk: bytes, in_header: bool, tmp_path: Path
) -> None:
    whole = whole_file()
    size = 400 if in_header else len(whole)
    start = int(size * place)
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole[:start] + junk + whole[start + len(junk) :])
    message = "read"
    try:
        read_all(path)
    except BuildError as error:
        message = str(error)
    assert message
    assert "\n" not in message


@pytest.mark.parametrize("count", [2**16, 2**40, 2**63])
def test_a_count_beyond_the_file_is_refused_before_anything_is_read(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken at its word, a damaged count of values is appended to until the machine has no memory left."""
    monkeypatch.setattr(gguf_checkpoint, "GGUFReader", lambda *_: pytest.fail("read all the same"))
    whole = whole_file()
    tokens = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    path = tmp_path / "damaged.gguf"
    # Behind the key: the type array, the type of its values, their number.
    for start in (8, 16, tokens + 8):
        path.write_bytes(whole[:start] + count.to_bytes(8, "little") + whole[start + 8 :])
        with pytest.raises(CheckpointError, match="not a whole GGUF file"):
            GgufCheckpoint(path)


def test_an_empty_file_and_another_kind_of_file_are_refused(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"PK\x03\x04" * 100, b"GGUF", b"GGUF\x03\x00\x00\x00")):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="not a whole GGUF file"):
            GgufCheckpoint(path)


def test_metadata_of_another_type_is_named(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", edit=lambda writer: writer.add_bool("test.flag", True))
    checkpoint = GgufCheckpoint(path)
    with pytest.raises(CheckpointError, match=r"test\.flag should be a int"):
        checkpoint.get("test.flag", int)
    assert checkpoint.get("test.flag", bool) is True
    assert checkpoint.get("test.absent", int) is None
    with pytest.raises(CheckpointError, match=r"lacks test\.absent"):
        checkpoint.require("test.absent", int)


@pytest.mark.parametrize("read", [GgufCheckpoint.read, GgufCheckpoint.read_float32])
def test_a_value_that_is_not_finite_is_placed_however_it_is_read(
    read: Callable[[GgufCheckpoint, str], object], tmp_path: Path
) -> None:
    def spoil(writer: gguf.GGUFWriter) -> None:
        writer.tensors[0]["blk.0.ffn_up.weight"].tensor[2, 5] = np.inf

    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf", matrices=Kind.F32, edit=spoil))
    with pytest.raises(
        CheckpointError, match=r"blk.0.ffn_up.weight holds a value that is not finite, the first at \(2, 5\)"
    ):
        read(checkpoint, "blk.0.ffn_up.weight")
