"""Programs as texts, for the machine of the usual sizes: examples, lessons and tests."""

from __future__ import annotations

INVERSE_SQUARE_ROOT = """
# r becomes 1 / sqrt(a), by Newton's iteration r (3 - a r r) / 2
1: t = r * r
2: t = t * a
3: t = 3 - t
4: t = t * 0.5
5: r = r * t
6: n = n - 1 if > 0 goto 1
7: s = r goto end
a = 2  r = 0.5  n = 5
"""

GREATEST_COMMON_DIVISOR = """
# g becomes the greatest common divisor of a and b, by subtraction
1: t = a - b if > 0 goto 4
2: t = b - a if <= 0 goto 5
3: b = t goto 1
4: a = t goto 1
5: g = a goto end
a = 84  b = 36
"""

GRADIENT_DESCENT = """
# w becomes the slope of the line through 0 that is nearest to the points (A[i], B[i])
1: g = 0
2: i = 0
3: e = w * A[i]
4: e = e - B[i]
5: e = e * A[i]
6: g = g + e
7: i = i + 1
8: t = i - n if < 0 goto 3
9: g = g * r              # r: the learning rate
10: w = w - g
11: k = k - 1 if > 0 goto 1
12: s = w goto end
w = 0  r = 0.25  k = 10  n = 4
A = [-1, -0.5, 0.5, 1]
B = [-0.75, -0.25, 0.5, 0.625]
"""

BUBBLE_SORT = """
# sorts A[0] ... A[n - 1] in place
1: i = 0
2: s = 0                  # swaps in this pass
3: j = i + 1
4: d = A[i] - A[j] if <= 0 goto 9
5: t = A[i]
6: A[i] = A[j]
7: A[j] = t
8: s = s + 1
9: i = j
10: t = j + 1
11: t = t - n if < 0 goto 3
12: s = s if > 0 goto 1
13: s = 0 goto end
n = 6
A = [3, -1.5, 7, 0.25, -2, 7]
"""

BRACKETS = """
# 1 opens, -1 closes, 0 ends: m is the greatest depth, b is 1 if every bracket has its partner
1: d = 0
2: m = 0
3: b = 0
4: i = -1
5: i = i + 1
6: t = abs(A[i])
7: t = 0 - t if >= 0 goto 10
8: d = d + A[i] if < 0 goto 12
9: m = max(m, d) goto 5
10: t = 0 - d if < 0 goto 12
11: b = 1
12: t = d goto end
A = [1, 1, -1, 1, 1, -1, -1, -1, 0]
"""

BINARY_SEARCH = """
# p is the place of x among the rising numbers A[0] ... A[h], or -1
1: l = 0
2: t = h - l if < 0 goto 11
3: t = l + h
4: t = t * 0.5
5: m = floor(t)
6: t = x - A[m] if > 0 goto 9
7: t = t if < 0 goto 10
8: p = m goto end
9: l = m + 1 goto 2
10: h = m - 1 goto 2
11: p = -1 goto end
h = 9  x = 11
A = [1, 2, 3, 5, 7, 11, 13, 17, 19, 23]
"""

LONG_DIVISION = """
# the number with the digits A[0] ... A[n - 1] by d: digits B[0] ... of the quotient, remainder r
1: i = 0
2: r = 0
3: r = r * 10
4: r = r + A[i]
5: q = 0
6: t = r - d if < 0 goto 9
7: r = t
8: q = q + 1 goto 6
9: B[i] = q
10: i = i + 1
11: t = i - n if < 0 goto 3
12: r = r goto end
n = 6  d = 11
A = [8, 0, 1, 9, 7, 9]
"""

RULE_110 = """
# g generations of the cellular automaton 110 on the cells A[1] ... A[w], with zeros at both ends;
# the rule is a function of one's own, the table C
1: l = 0
2: i = 1
3: k = l + l
4: k = k + A[i]
5: l = A[i]               # the old value is the next cell's left neighbour
6: j = i + 1
7: k = k + k
8: k = k + A[j]           # 4 left + 2 own + right
9: A[i] = C(k)
10: i = j
11: t = i - w if <= 0 goto 3
12: g = g - 1 if > 0 goto 1
13: l = 0 goto end
g = 8  w = 14
C = [0, 1, 1, 1, 0, 1, 1, 0]
A = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
"""

TEXTS: dict[str, str] = {
    "inverse square root": INVERSE_SQUARE_ROOT,
    "greatest common divisor": GREATEST_COMMON_DIVISOR,
    "gradient descent": GRADIENT_DESCENT,
    "bubble sort": BUBBLE_SORT,
    "brackets": BRACKETS,
    "binary search": BINARY_SEARCH,
    "long division": LONG_DIVISION,
    "rule 110": RULE_110,
}
"""Name and text of each program."""
