"""What may go wrong in a build, as one hierarchy. Every message is one sentence for the person at the terminal.

BuildError
├── SourceError        the checkpoint cannot be had: not downloaded, not there, not what its hash says
├── CheckpointError    the file is no checkpoint, or a broken one
├── UnsupportedError   a sound checkpoint that this recipe does not implement, named by the feature
├── VerificationError  the built engine does not compute what it must
└── PublishError       the result cannot be put in place: disk full, no permission, another build is running
"""

from __future__ import annotations


class BuildError(Exception):
    """Root. ``str(error)`` is what the command prints: one line, whatever names a damaged or hostile file put into it."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class SourceError(BuildError):
    pass


class CheckpointError(BuildError):
    pass


class UnsupportedError(BuildError):
    pass


class VerificationError(BuildError):
    pass


class PublishError(BuildError):
    pass
