"""What a checkpoint computes, in NumPy: slow, short and exact, written from the papers and configs.

``unsharded`` runs the tensors of a checkpoint; ``ranks`` runs the rank files of a TensorRT-LLM checkpoint and nothing else,
the ranks in lock-step with real all-reduce and pipeline hand-over. The two share the formulas of ``arithmetic`` and no more,
so that a conversion is proven by two readings of the model that agree.
"""
