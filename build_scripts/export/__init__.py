"""Architectures that this project does not describe itself, through optimum-intel, into the same kind of engine.

The exporter wants versions of transformers and tokenizers that do not go together with ours, so it has an environment of its
own and runs as a program there (``exporter``, which imports nothing of this project). ``environment`` finds it, ``exported``
reads what it left, ``build`` walks the way from a directory to a published engine.
"""
