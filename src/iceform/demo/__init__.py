"""``iceform demo``: the whole library by frozen attention on real data.

``ames`` runs it on 2930 houses beside scikit-learn; ``patients``, the small one, takes the losses
one by one through the literal matrices.
"""
