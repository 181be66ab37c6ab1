// Averages of samples in this page: kernels, and neighbours as iceform_estimators.algorithms.neighbours reads.

import { dot, minus, norm, plus } from './algebra.js';
import { Trouble } from './trouble.js';

const LARGEST_LOGIT = 2 ** 40;
const UNIT = 2 ** -53;
const LEAST = 1e-140; // of the farthest distance: closer samples count as equal

const longest = (rows) => rows.reduce((most, row) => Math.max(most, norm(row)), 0);

/** Samples less their mean, the mean, and the length of the longest. */
function centred(x) {
  const same = x.every((row) => row.every((v, j) => v === x[0][j]));
  const center = same ? x[0] : x[0].map((_, j) => x.reduce((sum, row) => sum + row[j], 0) / x.length);
  const moved = x.map((row) => minus(row, center));
  return { moved, center, radius: longest(moved) };
}

/** The prompts that answer points with the values' average by e^{-gamma |q - x_j|^2}. */
const kernelData = (x, values, points, gamma, seen = null) => ({
  keys: x.map((row) => row.map((v) => 2 * gamma * v)), biases: x.map((row) => -gamma * dot(row, row)), values, points, seen,
});

/** Kernel averages of the labels at points. */
export async function kernel(machine, x, y, points, gamma, signal) {
  const { moved, center } = centred(x);
  const data = kernelData(moved, y.map((v) => [v]), points.map((p) => minus(p, center)), gamma);
  return (await machine.average(data, signal)).map(([value]) => value);
}

/** What a panel shows of a kernel's or a first read's prompt. */
export function opening(x, values, points, gamma) {
  const { moved, center } = centred(x);
  return kernelData(moved, values, points.map((p) => minus(p, center)), gamma);
}

/** The largest gamma whose logits are known to 1/2. */
function sharpest(radius, queries, dim) {
  const reach = (2 * queries + radius) * radius;
  return reach > 0 ? Math.min(LARGEST_LOGIT, 1 / (2 * (dim + 8) * UNIT)) / reach : 1;
}

export const sharpestFor = (x, points) => {
  const { center, radius } = centred(x);
  return sharpest(radius, longest(points.map((p) => minus(p, center))), x[0].length);
};

/** Numbers of samples as values c and c^2: one digit is enough for the points of a board. */
class Places {
  constructor(count) {
    this.count = count;
    this.base = Math.max(2, count);
    this.middle = (this.base - 1) / 2;
    this.scale = 2 ** -Math.ceil(Math.log2(Math.max(this.middle, 0.5)));
  }

  values() {
    return Array.from({ length: this.count }, (_, i) => {
      const digit = this.scale * (i - this.middle);
      return [digit, digit * digit];
    });
  }

  read([first, second]) {
    const digit = first / this.scale, spread = second / this.scale ** 2 - digit * digit;
    const number = Math.max(0, Math.min(this.count - 1, Math.round(digit + this.middle)));
    return { number, clear: spread <= 1 / 32, mean: digit + this.middle };
  }
}

/** Sharp reads, each hiding what was read before. */
class Reads {
  constructor(machine, samples, signal) {
    Object.assign(this, { machine, samples, signal, places: new Places(samples.length) });
    this.numbers = this.places.values();
  }

  read({ x, points, gamma }, values, seen) {
    return this.machine.average(kernelData(x, values, points, gamma, seen), this.signal);
  }

  async look(frame, seen) {
    return (await this.read(frame, this.numbers, seen)).map((row) => this.places.read(row));
  }

  async find(frame, points, k) {
    const seen = points.map(() => this.samples.map(() => true)), found = points.map(() => []);
    for (let turn = 0; turn < k; turn += 1) {
      const nearest = await this.nearest(frame, points, seen);
      nearest.forEach((one, q) => { found[q].push(one); seen[q][one] = false; });
    }
    return found;
  }

  async nearest(frame, points, seen) {
    const looked = await this.look(frame, seen), numbers = looked.map(({ number }) => number);
    const mixed = looked.map((_, q) => q).filter((q) => !looked[q].clear);
    if (!mixed.length) return numbers;
    const some = (rows) => ({ ...frame, points: rows.map((q) => frame.points[q]) });
    const inners = await this.mixtures(some(mixed), mixed.map((q) => seen[q]));
    for (const [place, q] of mixed.entries()) {
      const one = await this.zoom(some([q]), inners[place], points[q], seen[q]);
      numbers[q] = one ?? await this.earliest(some([q]), seen[q], looked[q].mean);
    }
    return numbers;
  }

  /** What reads mix: the mean, the spread, and whether that is but rounding. */
  async mixtures(frame, seen) {
    const values = frame.x.map((row) => [...row, dot(row, row)]);
    return (await this.read(frame, values, seen)).map((row) => {
      const mean = row.slice(0, -1), square = row.at(-1), noise = 16 * UNIT * square;
      const spread = square - dot(mean, mean);
      return { mean, spread: Math.sqrt(Math.max(0, spread + noise)), flat: spread <= noise };
    });
  }

  /** Around what a read mixed, if that is twice as sharp or more. */
  closer(frame, inner, point) {
    const center = plus(minus(point, frame.points[0]), inner.mean);
    const query = minus(point, center), x = this.samples.map((row) => minus(row, center));
    const far = norm(query), radius = Math.max(4 * far, 8 * inner.spread);
    const reach = (2 * far + radius) * radius, before = (2 * longest(frame.points) + frame.radius) * frame.radius;
    const least = LARGEST_LOGIT * (LEAST * longest(x)) ** 2;
    if (!(least < reach && reach < 0.5 * before)) return null;
    return { x, points: [query], radius, gamma: sharpest(radius, far, x[0].length) };
  }

  async zoom(frame, inner, point, seen) {
    const closer = this.closer(frame, inner, point);
    if (!closer) return null;
    const [{ number, clear, mean }] = await this.look(closer, [seen]);
    const one = clear ? number : await this.among(closer, inner, point, seen, mean);
    return seen[one] && norm(closer.x[one]) <= closer.radius / 2 ? one : null;
  }

  async among(frame, before, point, seen, mean) {
    const [inner] = await this.mixtures(frame, [seen]);
    const one = before.flat && inner.flat ? null : await this.zoom(frame, inner, point, seen);
    return one ?? this.earliest(frame, seen, mean);
  }

  /** Of samples that a read mixes the earliest: later ones are hidden until one is left. */
  async earliest(frame, seen, mean) {
    for (;;) {
      const fewer = seen.map((s, i) => s && i < mean);
      if (!fewer.some(Boolean) || fewer.every((s, i) => s === seen[i])) {
        throw new Trouble({ kind: 'refused', message: `two of ${seen.length} samples are too near to be told apart by a read; move one of them` });
      }
      seen = fewer;
      const [found] = await this.look(frame, [seen]);
      if (found.clear) return found.number;
      mean = found.mean;
    }
  }
}

/** Mean label of the k nearest samples, at points. */
export async function neighbours(machine, x, y, points, k, signal) {
  if (k > x.length) {
    throw new Trouble({ kind: 'refused', message: `n_neighbors = ${k} but n_samples = ${x.length}; ask for fewer neighbours`, where: 'model.options.n_neighbors' });
  }
  const { moved, center, radius } = centred(x), queries = points.map((p) => minus(p, center));
  const gamma = sharpest(radius, longest(queries), x[0].length);
  const found = await new Reads(machine, x, signal).find({ x: moved, points: queries, radius, gamma }, points, k);
  const seen = found.map((own) => x.map((_, i) => own.includes(i)));
  const data = { keys: x.map(() => [0]), biases: seen.map((row) => row.map(() => 0)), values: y.map((v) => [v]), points: points.map(() => [0]), seen };
  return (await machine.average(data, signal)).map(([value]) => value);
}
