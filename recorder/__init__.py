"""From a launch to a journal: hook, capture, write."""
