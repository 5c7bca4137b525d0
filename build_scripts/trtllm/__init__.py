"""TensorRT-LLM, stage one: a checkpoint in the layout that trtllm-build reads, made on any machine with NumPy alone.

A directory holds config.json and one rank{r}.safetensors for each GPU. What the layout is was read in TensorRT-LLM's public
documentation and sources of the releases around 1.2.1, the last line with an engine builder; nothing here was run against
that package, and docs/tensorrt-llm.md says which checks are left to a machine with GPUs. What can be proven without one is
proven: the rank files alone, run in lock-step by ``reference.ranks``, give what the unsharded checkpoint gives.

``layout`` says which rank holds what share, ``targets`` which tensors a stage has and what they are made of, ``config`` what
config.json says, ``convert`` writes it all, a tensor at a time.
"""
