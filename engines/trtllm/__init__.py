"""TensorRT-LLM's C++ executor on GPUs, behind :class:`engines.contract.RequestExecutor`.

``native`` alone imports the library; importing anything else here needs none of it. The pinned release is 1.2.1, the last line that
runs compiled engines. Names, parameters and error texts were read in NVIDIA's public sources of releases around it and have not been
run here: ``probe`` holds them against the library that is installed, at every start, by constructing. docs/tensorrt-llm.md says
what is proven where.

``facts`` is what an engine's manifest tells, ``machine`` what this machine has, ``preflight`` compares the two before a GPU is touched;
``requests`` and ``responses`` translate, ``executor`` drives, ``causes`` explains what the library says when it fails.
"""
