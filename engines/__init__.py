"""One module per serving engine: its buffers, its settings, and when to replay."""
