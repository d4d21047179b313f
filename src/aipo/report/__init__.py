"""One self-contained HTML page that shows what a run did."""
