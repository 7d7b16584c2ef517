"""Real kernel libraries: each module lists a library's operators, `run.py` runs them, `report.py` makes the table."""
