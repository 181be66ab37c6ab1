"""Ways to change a weight: in place, behind counters of changes, and as a whole."""

import numpy as np


def in_place(weight):
    weight[(0,) * weight.ndim] = float("nan")


def through_data(weight):
    weight.data.view(-1)[0] = float("nan")


def through_numpy(weight):
    weight.detach().numpy().reshape(-1)[0] = np.nan


def scaled(weight):
    weight.mul_(1.5)


def swapped(weight):
    weight.copy_(weight.flip(-2).clone())


FORGERIES = (in_place, through_data, through_numpy, scaled, swapped)
