"""From rows of results to tables, verdicts, figures and a report."""
