"""The small demo: six losses by one frozen module, the whole library by another, and a report.

The data are scikit-learn's diabetes set: 442 patients, ten measurements, one score. Every column
is scaled to [-1, 1], and every loss gets the score in the form it asks for.
"""
