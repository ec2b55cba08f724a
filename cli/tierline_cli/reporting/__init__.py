"""The report of a run for a person: results, verdicts, tables."""
