"""The Open Inference Protocol (KServe v2) with Triton's streaming: translated to and from the native API, which validates and runs."""
