"""Wrong programs that the tests must notice: ``make mutants``."""
