"""Where it runs: the stages in order, in one process."""
