"""What makes engines: reads a checkpoint, bills the memory, builds the graph, verifies it, publishes it.

One engine is one directory::

    engine.json       what was built, from what, by what, for what (engines/manifest.py). Written last: without it, no engine.
    model.xml         the decoder as a stateful OpenVINO graph: scaled-dot-product attention over ReadValue/Assign state, which
    model.bin         ``paged_attention_transformation`` accepts when the step runner loads it. The graph's inputs are input_ids,
                      attention_mask, position_ids (i64 [batch, tokens]) and beam_idx (i32 [batch]); its result is logits.
    tokenizer.json    byte-level BPE for the ``tokenizers`` library, made of the checkpoint's own metadata.

The way of a build, one module a step: source -> gguf_checkpoint -> decoder -> bill -> graph + tokenizer -> verify -> profile
-> publish. ``build`` walks it; ``inspection`` reads what it left.
"""
