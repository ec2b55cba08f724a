"""What a person is told of a run: results, verdicts, tables."""
