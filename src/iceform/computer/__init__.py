"""The frozen computer: a language, its compiler, and one block of attention that runs it."""
