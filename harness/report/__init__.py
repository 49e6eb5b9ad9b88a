"""What is published of recorded runs: figures, the report as one page, and packs that others verify."""
