"""A checkpoint in its place: is it whole, and does it compute what its source computes?"""

from __future__ import annotations

from pathlib import Path

from build_scripts.casting import FloatType
from build_scripts.errors import UnsupportedError, VerificationError
from build_scripts.source import directory_sha256, file_sha256
from build_scripts.stages import files_stand
from build_scripts.trtllm.proof import ShardingProof, probe_tokens, prove_sharding
from build_scripts.trtllm.record import CheckpointRecord, read_record
from build_scripts.trtllm.source import open_source


def verify_files(directory: Path) -> CheckpointRecord:
    """Every file as the record says. Raises CheckpointError and VerificationError."""
    record = read_record(directory)
    for entry in record.files:
        if not files_stand(directory, [entry]):
            raise VerificationError(f"{entry.name} is missing or not what was built; build again")
    return record


def verify_against(directory: Path, source: Path, tokens: int) -> ShardingProof:
    """Run the rank files alone, and the source, over ``tokens`` tokens in float64. Raises VerificationError where they differ."""
    record = verify_files(directory)
    found = directory_sha256(source) if source.is_dir() else file_sha256(source)
    if found != record.source.sha256:
        raise VerificationError(f"{source.name} is not what the checkpoint was made of: its sha256 differs")
    dtype: FloatType = record.dtype  # type: ignore[assignment]  # written by us, from a FloatType
    opened = open_source(source, dtype, record.weights)
    if opened.floats is None:
        raise UnsupportedError(f"{opened.summary}: the numeric proof is for checkpoints of floats; the files are whole")
    proof = prove_sharding(
        opened.decoder, opened.floats, dtype, directory, probe_tokens(opened.decoder.vocab_size, tokens)
    )
    if not proof.holds:
        raise VerificationError(
            f"the rank files' log-probabilities differ from the source's by up to {proof.max_difference:.2g} on "
            f"{proof.tokens} tokens"
        )
    return proof
