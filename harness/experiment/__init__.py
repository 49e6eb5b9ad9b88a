"""From what is asked for to specs: of one run, or of all runs that an experiment lists."""
