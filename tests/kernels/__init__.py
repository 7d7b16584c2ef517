"""Small Triton kernels for the tests. Only what makes their keys matters, so none computes anything of use."""
