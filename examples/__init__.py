"""A small server, its kernels, and a counter of what Triton compiles while it runs."""
