"""The only room that touches Triton's internals."""
