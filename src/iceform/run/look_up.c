/* The look-up of iceform/run/windowed.py, and a pass of it over samples, as loops.

   This file is compiled twice from within itself: with REAL float and with REAL double. Loops over
   LANES entries are written so that a compiler makes vector instructions of them; no option that
   changes the order of sums is needed. Products may be contracted (fma): that only spares
   roundings. */

#include <stdint.h>
#include <string.h>

#ifndef REAL

#define LANES 128 /* entries looked up together: also the rows of a block of sums */
#define LINE 64   /* bytes of a sample read together */
#define MOST_HALF 64 /* tokens either side of the nearest, at most */
#define INLINE static inline __attribute__((always_inline))

/* Sizes that both precisions share. */
typedef struct {
    int64_t half, affine, bounded, tokens;
} shape;

/* A column of a table whose keys are in order: width entries of a window, and how many cells, a power
   of two, are searched. It is a parabola a z^2 + b z + d from low to high, where it is closed. Numbers
   that are pointed to have the precision of the look-up. */
typedef struct {
    int64_t width, search, closed;
    double a, b, d, low, high;
    const void *ends, *origins, *slopes, *offsets, *column;
    const int32_t *first;
} side;

/* Sizes of an array of three axes, and the strides of two operands; 0 where all are the same. */
typedef struct {
    int64_t sizes[3], a[3], b[3];
} axes;

#define REAL float
#define WORD int32_t
#define NAME(x) x##_float32
#define BITS 23
#define BIAS 127
#define LEAST (-87.0f)
#define MOST 88.0f
#define LOG2E 1.44269504088896341f
#define LN2_HIGH 0.693359375f
#define LN2_LOW (-2.12194440e-4f)
#define MAGIC 12582912.0f /* 1.5 2^23: adding it rounds to the nearest whole number */
#define TAYLOR {1.0f, 1.0f, 0.5f, 1.6666667163e-1f, 4.1666667908e-2f, 8.3333337680e-3f, \
                1.3888889225e-3f, 1.9841270114e-4f}
#define TERMS 8
#include "look_up.c"
#undef REAL
#undef WORD
#undef NAME
#undef BITS
#undef BIAS
#undef LEAST
#undef MOST
#undef LOG2E
#undef LN2_HIGH
#undef LN2_LOW
#undef MAGIC
#undef TAYLOR
#undef TERMS
#undef SIZE
#undef HIGHEST
#undef LOWEST

#define REAL double
#define WORD int64_t
#define NAME(x) x##_float64
#define BITS 52
#define BIAS 1023
#define LEAST (-708.0)
#define MOST 709.0
#define LOG2E 1.44269504088896340736
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define MAGIC 6755399441055744.0 /* 1.5 2^52 */
#define TAYLOR {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, \
                1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, \
                1.0 / 6227020800.0}
#define TERMS 14
#include "look_up.c"

#else /* one precision */

/* e^t within one unit in the last place; 0 below LEAST, capped at e^MOST, not a number where t is
   not. With t = n ln 2 + r, |r| <= ln(2)/2, the series of e^r is 2^-56 (float64) or 2^-27 off. */
INLINE REAL NAME(exponential)(REAL t) {
    static const REAL series[TERMS] = TAYLOR;
    REAL held = t < MOST ? t : MOST;
    held = held > LEAST ? held : LEAST;
    REAL whole = held * LOG2E + MAGIC;
    REAL n = whole - MAGIC;
    REAL r = (held - n * LN2_HIGH) - n * LN2_LOW;
    REAL sum = series[TERMS - 1];
    for (int k = TERMS - 2; k >= 0; k--) sum = sum * r + series[k];
    WORD bits = ((WORD)n + BIAS) << BITS;
    REAL power;
    memcpy(&power, &bits, sizeof power);
    REAL found = t >= LEAST ? sum * power : (REAL)0;
    return t == t ? found : t;
}

typedef struct {
    REAL mass[LANES], right[LANES], left[LANES], nearest[LANES];
    int32_t first[LANES];
} NAME(places);

/* The nearest token to each z, and what its neighbours weigh. numbers: center, cells per unit,
   middle, last, sharpness, slope, value of the token in the middle. */
static __attribute__((noinline)) void NAME(place)(const REAL *z, const REAL *numbers, NAME(places) *p) {
    REAL center = numbers[0], per_unit = numbers[1], middle = numbers[2], last = numbers[3];
    REAL sharpness = numbers[4];
    for (int i = 0; i < LANES; i++) {
        REAL cells = (z[i] - center) * per_unit, at = cells + middle;
        at = at > 0 ? at : 0; /* what is not a number goes to token 0, and stays in u */
        at = at < last ? at : last;
        REAL nearest = (at + MAGIC) - MAGIC;
        REAL u = cells - (nearest - middle);
        p->nearest[i] = nearest;
        p->first[i] = (int32_t)nearest;
        p->right[i] = NAME(exponential)(sharpness * (2 * u - 1));
        p->left[i] = NAME(exponential)(sharpness * (-2 * u - 1));
        p->mass[i] = 1 + 0 * u;
    }
}

typedef REAL NAME(line) __attribute__((vector_size(LINE)));
typedef WORD NAME(bits) __attribute__((vector_size(LINE)));
enum { NAME(WIDE) = LINE / sizeof(REAL) };

INLINE NAME(line) NAME(load)(const REAL *x) {
    NAME(line) a;
    memcpy(&a, x, sizeof a);
    return a;
}

/* number where the token is there (room >= least), else 0. */
INLINE NAME(line) NAME(there)(REAL number, NAME(line) room, REAL least) {
    NAME(line) all = number - (NAME(line)){0};
    return (NAME(line))((NAME(bits))all & (NAME(bits))(room >= least));
}

/* A(z) of LANES entries. values has half zeros either side. With a = right or left the token j away
   weighs c_j a^j, c_j the product of the ratios up to j: sums by Horner's rule, both sides of WIDE
   entries in registers. */
static __attribute__((noinline)) void NAME(lanes)(const REAL *z, REAL *out, const shape *s, const REAL *numbers,
                        const REAL *ratios, const REAL *values) {
    NAME(places) p;
    REAL weights[MOST_HALF];
    int32_t half = (int32_t)s->half;
    double product = 1;
    for (int32_t j = 0; j < half; j++) weights[j] = (REAL)(product *= ratios[j]);
    NAME(place)(z, numbers, &p);
    for (int b = 0; b < LANES; b += NAME(WIDE)) {
        NAME(line) right = NAME(load)(p.right + b), left = NAME(load)(p.left + b);
        NAME(line) nearest = NAME(load)(p.nearest + b), mass = NAME(load)(p.mass + b);
        NAME(line) ahead = numbers[3] - nearest, found;
        NAME(line) w = {0}, v = {0}, m = {0}, n = {0};
        if (s->affine && !s->bounded) {
            for (int32_t j = half; j > 0; j--) {
                REAL c = weights[j - 1], d = c * (REAL)j;
                w = w * right + c;
                v = v * left + c;
                m = m * right + d;
                n = n * left + d;
            }
        } else if (s->affine) {
            for (int32_t j = half; j > 0; j--) {
                REAL c = weights[j - 1], d = c * (REAL)j, at = (REAL)j;
                w = w * right + NAME(there)(c, ahead, at);
                v = v * left + NAME(there)(c, nearest, at);
                m = m * right + NAME(there)(d, ahead, at);
                n = n * left + NAME(there)(d, nearest, at);
            }
        } else {
            const int32_t *first = p.first + b;
            for (int32_t j = half; j > 0; j--) {
                REAL least = s->bounded ? (REAL)j : (REAL)-1;
                NAME(line) c = NAME(there)(weights[j - 1], ahead, least);
                NAME(line) d = NAME(there)(weights[j - 1], nearest, least);
                REAL after[NAME(WIDE)], before[NAME(WIDE)];
                for (int i = 0; i < NAME(WIDE); i++) {
                    after[i] = values[half + j + first[i]];
                    before[i] = values[half - j + first[i]];
                }
                w = w * right + c;
                v = v * left + d;
                m = m * right + c * NAME(load)(after);
                n = n * left + d * NAME(load)(before);
            }
        }
        mass += w * right + v * left;
        if (s->affine) {
            NAME(line) moved = (m * right - n * left) / mass;
            found = numbers[6] + numbers[5] * ((nearest - (REAL)(s->tokens / 2)) + moved);
        } else {
            REAL own[NAME(WIDE)];
            for (int i = 0; i < NAME(WIDE); i++) own[i] = values[half + p.first[b + i]];
            found = (NAME(load)(own) + (m * right + n * left)) / mass;
        }
        memcpy(out + b, &found, sizeof found);
    }
}

/* A'(z) = (2 c / h) Cov(j, v) of LANES entries. */
static __attribute__((noinline)) void NAME(slopes)(const REAL *z, REAL *out, const shape *s, const REAL *numbers,
                         const REAL *ratios, const REAL *values) {
    NAME(places) p;
    REAL ahead[LANES] = {0}, total[LANES] = {0}, both[LANES] = {0};
    REAL weight[LANES], place[LANES], moment[LANES], mixed[LANES], room[LANES];
    int32_t half = (int32_t)s->half;
    NAME(place)(z, numbers, &p);
    for (int side = 1; side >= -1; side -= 2) {
        const REAL *factor = side > 0 ? p.right : p.left;
        for (int i = 0; i < LANES; i++) {
            weight[i] = place[i] = moment[i] = mixed[i] = 0;
            room[i] = side > 0 ? numbers[3] - p.nearest[i] : p.nearest[i];
        }
        for (int32_t j = half; j > 0; j--) {
            REAL ratio = ratios[j - 1], least = s->bounded ? (REAL)j : (REAL)-1;
            REAL away = (REAL)(side * j);
            const REAL *own = values + half, *at = own + side * j;
            for (int i = 0; i < LANES; i++) {
                REAL step = room[i] >= least ? factor[i] * ratio : 0;
                REAL value = s->affine ? numbers[5] * away : at[p.first[i]] - own[p.first[i]];
                weight[i] = step * (weight[i] + 1);
                place[i] = step * (place[i] + away);
                moment[i] = step * (moment[i] + value);
                mixed[i] = step * (mixed[i] + away * value);
            }
        }
        for (int i = 0; i < LANES; i++) {
            p.mass[i] += weight[i];
            ahead[i] += place[i];
            total[i] += moment[i];
            both[i] += mixed[i];
        }
    }
    for (int i = 0; i < LANES; i++) {
        REAL mean = total[i] / p.mass[i];
        out[i] = 2 * numbers[4] * numbers[1] * (both[i] / p.mass[i] - mean * (ahead[i] / p.mass[i]));
    }
}

typedef void NAME(formula)(const REAL *, REAL *, const shape *, const REAL *, const REAL *,
                           const REAL *);

static void NAME(all)(NAME(formula) *one, const REAL *z, REAL *out, int64_t count, const shape *s,
                      const REAL *numbers, const REAL *ratios, const REAL *values) {
    int64_t start = 0;
    for (; start + LANES <= count; start += LANES)
        one(z + start, out + start, s, numbers, ratios, values);
    if (start < count) {
        REAL some[LANES], found[LANES];
        for (int i = 0; i < LANES; i++) some[i] = start + i < count ? z[start + i] : numbers[0];
        one(some, found, s, numbers, ratios, values);
        memcpy(out + start, found, (count - start) * sizeof *out);
    }
}

void NAME(look_up)(const REAL *z, REAL *out, int64_t count, const shape *s, const REAL *numbers,
                   const REAL *ratios, const REAL *values) {
    NAME(all)(NAME(lanes), z, out, count, s, numbers, ratios, values);
}

INLINE REAL NAME(sum)(NAME(line) a) {
    REAL parts[NAME(WIDE)];
    memcpy(parts, &a, sizeof a);
    for (int width = NAME(WIDE) / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++) parts[k] += parts[k + width];
    return parts[0];
}

/* e^t of a line for t <= 0, to a unit in the last place; 0 below LEAST and where t is no number. */
INLINE NAME(line) NAME(falling)(NAME(line) t) {
    static const REAL series[TERMS] = TAYLOR;
    NAME(bits) there = (NAME(bits))(t >= (REAL)LEAST);
    NAME(line) held = (NAME(line))((NAME(bits))t & there);
    NAME(line) whole = held * LOG2E + MAGIC, n = whole - MAGIC;
    NAME(line) r = (held - n * LN2_HIGH) - n * LN2_LOW;
    NAME(line) sum = series[TERMS - 1] - (NAME(line)){0};
    for (int k = TERMS - 2; k >= 0; k--) sum = sum * r + series[k];
    NAME(line) power = (NAME(line))(((NAME(bits))whole + (WORD)BIAS) << BITS);
    return (NAME(line))((NAME(bits))(sum * power) & there);
}

/* A(z) of count entries for keys in order. Cell j is between two ends, and there entry j weighs most:
   entry k weighs e^(slope_k - slope_j)(z - origin_j) + offset_jk relative to it. */
static void NAME(ordered)(const REAL *z, REAL *out, int64_t count, const side *s) {
    const REAL *ends = s->ends, *origins = s->origins, *slopes = s->slopes;
    int32_t cells[LANES] = {0};
    for (int32_t step = (int32_t)(s->search / 2); step > 0; step /= 2)
        for (int i = 0; i < count; i++) cells[i] += ends[cells[i] + step - 1] < z[i] ? step : 0;
    for (int i = 0; i < count; i++) {
        int32_t j = cells[i], first = s->first[j];
        const REAL *offset = (const REAL *)s->offsets + j * s->width;
        const REAL *slope = slopes + first, *value = (const REAL *)s->column + first;
        REAL t = z[i] - origins[j], own = slopes[j];
        NAME(line) mass = {0}, total = {0};
        for (int64_t k = 0; k < s->width; k += NAME(WIDE)) {
            NAME(line) logit = (NAME(load)(slope + k) - own) * t + NAME(load)(offset + k);
            NAME(line) weight = NAME(falling)(logit);
            mass += weight;
            total += weight * NAME(load)(value + k);
        }
        out[i] = NAME(sum)(total) / NAME(sum)(mass) + 0 * t;
    }
}

/* The column at count entries. */
static void NAME(column)(const REAL *z, REAL *out, int64_t count, const side *s) {
    int inside = s->closed != 0;
    if (inside) {
        REAL low = (REAL)s->low, high = (REAL)s->high;
        REAL a = (REAL)s->a, b = (REAL)s->b, d = (REAL)s->d;
        for (int i = 0; i < count; i++) {
            inside &= (z[i] >= low) & (z[i] <= high);
            out[i] = (z[i] * a + b) * z[i] + d;
        }
    }
    if (!inside) NAME(ordered)(z, out, count, s);
}

/* Entries of an operand of three axes, in order, from entry start on. */
INLINE void NAME(gather)(const REAL *x, REAL *out, int64_t start, int64_t count,
                         const int64_t *sizes, const int64_t *strides) {
    int64_t k = start % sizes[2], row = start / sizes[2], step = strides[2];
    for (int64_t at = 0; at < count; row++, k = 0) {
        int64_t here = sizes[2] - k < count - at ? sizes[2] - k : count - at;
        const REAL *from = x + row / sizes[1] * strides[0] + row % sizes[1] * strides[1] + k * step;
        if (step == 1)
            memcpy(out + at, from, here * sizeof *out);
        else
            for (int64_t i = 0; i < here; i++) out[at + i] = from[i * step];
        at += here;
    }
}

/* F(a + b) - G(a - b) of count entries from start on; a side without entries is 0. */
void NAME(instruct)(const REAL *a, const REAL *b, REAL *out, const axes *x, const side *plus,
                    const side *minus, int64_t start, int64_t count) {
    REAL first[LANES], second[LANES], z[LANES], found[LANES], taken[LANES];
    for (int64_t end = start + count; start < end; start += LANES) {
        int64_t here = end - start < LANES ? end - start : LANES;
        NAME(gather)(a, first, start, here, x->sizes, x->a);
        NAME(gather)(b, second, start, here, x->sizes, x->b);
        memset(found, 0, sizeof found);
        if (plus->width) {
            for (int i = 0; i < here; i++) z[i] = first[i] + second[i];
            NAME(column)(z, found, here, plus);
        }
        if (minus->width) {
            for (int i = 0; i < here; i++) z[i] = first[i] - second[i];
            NAME(column)(z, taken, here, minus);
            for (int i = 0; i < here; i++) found[i] -= taken[i];
        }
        memcpy(out + start, found, here * sizeof *out);
    }
}

#define SIZE(x) ((x) & (WORD)~((WORD)1 << (8 * sizeof(WORD) - 1)))
#define HIGHEST ((WORD)(2 * BIAS - 2) << BITS) /* powers of two whose inverses are numbers too */
#define LOWEST ((WORD)8 << BITS)

/* A(z / s) s up where floor is given, s the power of two that |z| and floor are at most; else
   A(clip(z, reach)) + slope relu(z - reach). floor, up and by, or none, have a number for every
   feature, dim of them and LANES more from the beginning; the first entry is of feature offset.
   most is the largest |z| by, by its bits: not a number where one is not. out may be z. */
void NAME(read)(const REAL *z, REAL *out, int64_t count, int64_t offset, int64_t dim,
                const REAL *floor, const REAL *up, const REAL *by, const REAL *beyond, REAL *most,
                const shape *s, const REAL *numbers, const REAL *ratios, const REAL *values) {
    REAL reach = beyond[0], slope = beyond[1], given[LANES], held[LANES], found[LANES];
    REAL power[LANES];
    WORD largest = 0;
    for (int64_t start = 0; start < count; start += LANES) {
        int64_t here = count - start < LANES ? count - start : LANES, at = (start + offset) % dim;
        for (int64_t i = 0; i < here; i++) given[i] = z[start + i];
        for (int64_t i = here; i < LANES; i++) given[i] = 0;
        for (int i = 0; i < LANES; i++) {
            REAL sized = by ? given[i] * by[at + i] : given[i];
            WORD bits;
            memcpy(&bits, &sized, sizeof bits);
            bits = SIZE(bits);
            largest = bits > largest ? bits : largest;
        }
        if (floor)
            for (int i = 0; i < LANES; i++) {
                WORD bits, least, inverse;
                memcpy(&bits, given + i, sizeof bits);
                memcpy(&least, floor + at + i, sizeof least);
                bits = SIZE(bits);
                bits = bits > least ? bits : least;
                bits = bits < HIGHEST ? bits : HIGHEST;
                bits = bits > LOWEST ? bits : LOWEST;
                bits = (bits + (((WORD)1 << BITS) - 1)) & ~(((WORD)1 << BITS) - 1);
                inverse = ((WORD)(2 * BIAS) << BITS) - bits;
                REAL down;
                memcpy(&down, &inverse, sizeof down);
                memcpy(power + i, &bits, sizeof bits);
                held[i] = given[i] * down;
            }
        else
            for (int i = 0; i < LANES; i++) {
                REAL t = given[i] > reach ? reach : given[i]; /* what is not a number stays */
                held[i] = t < -reach ? -reach : t;
            }
        NAME(lanes)(held, found, s, numbers, ratios, values);
        if (floor)
            for (int i = 0; i < LANES; i++) found[i] *= power[i];
        else if (slope != 0)
            for (int i = 0; i < LANES; i++) found[i] += given[i] > reach ? slope * (given[i] - reach) : 0;
        if (up)
            for (int i = 0; i < LANES; i++) found[i] *= up[at + i];
        memcpy(out + start, found, here * sizeof *out);
    }
    memcpy(most, &largest, sizeof largest);
}

void NAME(derivative)(const REAL *z, REAL *out, int64_t count, const shape *s,
                      const REAL *numbers, const REAL *ratios, const REAL *values) {
    NAME(all)(NAME(slopes), z, out, count, s, numbers, ratios, values);
}

/* A row as lines of WIDE numbers: the last overlaps the one before it, and masks hide from sums
   what was counted already. Rows shorter than a line are copied into one. */
typedef struct {
    int64_t whole, dim;
    NAME(line) last;      /* 1 where the last line counts, else 0 */
    NAME(line) last_w;    /* its coefficients, 0 where it does not count */
} NAME(rows);

INLINE NAME(line) NAME(load_last)(const REAL *x, const NAME(rows) *r) {
    if (r->dim >= NAME(WIDE)) return NAME(load)(x + r->dim - NAME(WIDE));
    NAME(line) a = {0};
    for (int64_t k = 0; k < r->dim; k++) a[NAME(WIDE) - r->dim + k] = x[k];
    return a;
}

static NAME(rows) NAME(describe)(const REAL *w, int64_t dim) {
    NAME(rows) r = {dim / NAME(WIDE) * NAME(WIDE), dim, {0}, {0}};
    for (int64_t k = r.whole; k < dim; k++) {
        r.last[NAME(WIDE) - dim + k] = 1;
        r.last_w[NAME(WIDE) - dim + k] = w[k];
    }
    return r;
}

/* |a| by its bits, which are in order, not-a-number last. */
INLINE NAME(bits) NAME(larger)(NAME(line) a, NAME(bits) most) {
    NAME(bits) here = (NAME(bits))a & (WORD)~((WORD)1 << (8 * sizeof(WORD) - 1));
    NAME(bits) more = here > most;
    return (here & more) | (most & ~more);
}

/* x.w, and in most the largest |x_j| so far. */
INLINE REAL NAME(product)(const REAL *x, const REAL *w, const NAME(rows) *r, NAME(bits) *most) {
    NAME(line) sums = {0}, a;
    for (int64_t j = 0; j < r->whole; j += NAME(WIDE)) {
        a = NAME(load)(x + j);
        sums += a * NAME(load)(w + j);
        *most = NAME(larger)(a, *most);
    }
    if (r->whole < r->dim) {
        a = NAME(load_last)(x, r);
        sums += a * r->last_w;
        *most = NAME(larger)(a, *most);
    }
    return NAME(sum)(sums);
}

INLINE REAL NAME(squares)(const REAL *x, const NAME(rows) *r) {
    NAME(line) sums = {0}, a;
    for (int64_t j = 0; j < r->whole; j += NAME(WIDE)) {
        a = NAME(load)(x + j);
        sums += a * a;
    }
    if (r->whole < r->dim) {
        a = NAME(load_last)(x, r);
        sums += a * a * r->last;
    }
    return NAME(sum)(sums);
}

/* total += sum_i (A(x_i.w - y_i) - label_i) x_i, LANES rows at a time, reading x from memory once;
   seen: the largest |x_ij|, and with lengths the largest |x_i|^2. Rows of a block are summed in
   REAL (in float64 where exact), blocks in float64. block has room for dim numbers. */
void NAME(pass)(const REAL *x, const REAL *y, const REAL *w, const REAL *labels, int64_t rows,
                int64_t dim, const shape *s, const REAL *numbers, const REAL *ratios,
                const REAL *values, int64_t exact, int64_t lengths, REAL *restrict block,
                double *restrict total, double *seen) {
    NAME(rows) r = NAME(describe)(w, dim);
    NAME(bits) most = {0};
    WORD largest = 0;
    REAL longest = 0, z[LANES], looked[LANES];
    for (int64_t start = 0; start < rows; start += LANES) {
        int64_t here = rows - start < LANES ? rows - start : LANES;
        const REAL *own = x + start * dim;
        for (int64_t i = 0; i < here; i++)
            z[i] = NAME(product)(own + i * dim, w, &r, &most) - y[start + i];
        for (int64_t i = here; i < LANES; i++) z[i] = numbers[0];
        if (lengths)
            for (int64_t i = 0; i < here; i++) {
                REAL size = NAME(squares)(own + i * dim, &r);
                longest = size <= longest ? longest : size;
            }
        NAME(lanes)(z, looked, s, numbers, ratios, values);
        if (labels)
            for (int64_t i = 0; i < here; i++) looked[i] -= labels[start + i];
        if (exact) {
            for (int64_t i = 0; i < here; i++)
                for (int64_t j = 0; j < dim; j++)
                    total[j] += (double)looked[i] * (double)own[i * dim + j];
            continue;
        }
        memset(block, 0, dim * sizeof *block);
        int64_t i = 0;
        for (; i + 4 <= here; i += 4) {
            const REAL *a = own + i * dim, *b = a + dim, *c = b + dim, *d = c + dim;
            REAL p = looked[i], q = looked[i + 1], r = looked[i + 2], t = looked[i + 3];
            for (int64_t j = 0; j < dim; j++)
                block[j] += (p * a[j] + q * b[j]) + (r * c[j] + t * d[j]);
        }
        for (; i < here; i++)
            for (int64_t j = 0; j < dim; j++) block[j] += looked[i] * own[i * dim + j];
        for (int64_t j = 0; j < dim; j++) total[j] += (double)block[j];
    }
    for (int k = 0; k < NAME(WIDE); k++) largest = most[k] > largest ? most[k] : largest;
    REAL found;
    memcpy(&found, &largest, sizeof found);
    seen[0] = (double)found;
    seen[1] = (double)longest;
}

#endif
