"""A stock GPT-2 whose prompt is the text of a program and whose continuation is its run."""
