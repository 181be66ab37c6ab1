"""The demo: the whole library by frozen attention on real data, beside scikit-learn.

2930 houses sold in Ames, Iowa, 79 things known about each. The rows are split before anything is
fitted; medians, levels, scales, penalties and thresholds come from the training rows alone. Every
algorithm runs on the same frozen weights and is compared with scikit-learn's on the same split.
"""
