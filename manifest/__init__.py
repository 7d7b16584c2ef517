"""The data and its file: needs neither torch nor triton."""
