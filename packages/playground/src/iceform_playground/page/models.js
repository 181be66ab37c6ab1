// The playground's algorithms in this page: the frozen layer's passes, and what the host adds.

import { dot, eigen, largest, minus, norm, times, zeros } from './algebra.js';
import { ExactProblem, LookedProblem, minimise, Scaling, steps, tableOn } from './descents.js';
import { LOSSES } from './losses.js';
import { features } from './model.js';
import { kernel, neighbours } from './reads.js';
import { Trouble } from './trouble.js';

const [TIGHT, NEAR, PATIENCE] = [1e-13, 1e-9, 200]; // of the optimum that distances are measured from
const [TOL, MOST] = [1e-9, 1000]; // of the library's own fits
const STEP = 2 ** 36; // sharpness of the perceptron's step
export const CURVE = 201;
export const PLANE = 21; // places along either axis of the plane: a read is a prompt here

const frame = (passes, { coef, intercept }, beside = null, best = null) => {
  const here = [...coef, intercept];
  return {
    passes, coef, intercept, exact: beside,
    gap: beside && largest(minus(here, beside)), distance: best && largest(minus(here, best)),
  };
};

/** What a question says, in terms of samples and labels. */
export function setting({ points, model }, entry, stored) {
  const linear = entry.linear, task = entry.task;
  const x = linear ? points.map(({ x: a, y: b }) => features(task, model.degree, a, b)) : points.map((p) => (task === 'curve' ? [p.x] : [p.x, p.y]));
  const signs = stored?.kind === 'margin';
  const y = points.map((p) => (task === 'curve' ? p.y : signs ? 2 * p.group - 1 : p.group));
  return { x, y };
}

// ------------------------------------------------------------------------------- linear models

/** What the objective is: the loss, its penalty, and the thresholds of absolute values. */
function objective(stored, options, x, y) {
  const rows = x.length, { kind } = stored;
  const scaling = new Scaling(x, y, { labels: kind === 'residual', size: stored.unscaled ? 1 : null });
  const l2 = {
    ridge: () => options.alpha / rows, linear: () => 0, quantile: () => 0, lasso: () => 0, 'elastic-net': () => options.alpha * (1 - options.l1_ratio),
    logistic: () => 1 / (options.C * rows), svm: () => 1 / (2 * options.C * rows),
  }[stored.algorithm] ?? (() => options.alpha);
  const l1 = { lasso: options.alpha, 'elastic-net': options.alpha * options.l1_ratio }[stored.algorithm] ?? 0;
  const loss = LOSSES[stored.loss]({ ...stored.parameters, ...options });
  const thresholds = [...scaling.scale.map((s) => l1 / (s * scaling.size)), 0];
  return { parts: { scaling, x, y, kind, loss, ridge: scaling.penalty(l2()) }, thresholds };
}

/** Steps one at a time, by the frozen layer and without it. */
export async function bySteps({ machine, stored, tables, clips, running, options, x, y, signal, open = false }) {
  const { parts, thresholds } = objective(stored, options, x, y);
  const looked = new LookedProblem(parts, { machine, tables, clips, signal }), exact = new ExactProblem(parts);
  const best = open || thresholds.some((t) => t > 0) ? null : await optimum(parts);
  const frames = [];
  let note = null, w = looked.start();
  const here = steps(looked, running, thresholds, stored.bend), there = steps(exact, running, thresholds, stored.bend);
  try {
    for (let k = 0; k <= running.passes; k += 1) {
      const [own, other] = [await here.next(), await there.next()];
      if (own.done || other.done) break;
      w = own.value;
      const { coef, intercept } = parts.scaling.raw(other.value);
      frames.push(frame(looked.passes, parts.scaling.raw(own.value), [...coef, intercept], best));
    }
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    note = error.message;
  }
  if (open) return { problem: looked, w };
  return { frames, passes: looked.passes, note, table: tableOn(tables, looked.reach) };
}

/** The exact optimum, intercept last; null where it is not found. */
async function optimum(parts) {
  const { w, length } = await minimise(new ExactProblem(parts), { tol: TIGHT, most: PATIENCE });
  if (!(length <= NEAR)) return null;
  const { coef, intercept } = parts.scaling.raw(w);
  return [...coef, intercept];
}

/** Huber's regression with its scale: bracket the root, then regula falsi with halved weights. */
export async function huber({ machine, tables, squares, options, x, y, signal }) {
  const base = new Scaling(x, y, { labels: true }), rows = x.length, { epsilon, alpha } = options;
  let passes = 0, inner = null;
  const at = async (sigma) => {
    const unit = epsilon * sigma, scaling = base.with(base.size * unit);
    const ridge = times(sigma, scaling.penalty((alpha * base.size) / rows));
    const problem = new LookedProblem({ scaling, x, y, kind: 'residual', loss: LOSSES.huber(), ridge }, { machine, tables, least: 2 ** -6, signal });
    const { w } = await minimise(problem, { tol: TOL, most: Math.max(2, MOST - passes), start: inner && times(1 / unit, inner) });
    inner = times(unit, w);
    let reach = problem.reach, total = 0;
    const far = largest(problem.residuals(w));
    for (let k = 0; k < 3; k += 1) {
      const table = tableOn(squares, reach, 2 ** -6);
      problem.passes += 1;
      if (far <= table.high) {
        const found = await machine.lookUp(table, { x: problem.samples, y: problem.labels, w }, signal);
        total = found.reduce((sum, row) => sum + row.at(-1), 0);
        break;
      }
      reach = 2 * (table.high + (far - table.high));
    }
    passes += problem.passes;
    return { value: 1 - epsilon ** 2 * (total / rows), w, scaling, sigma };
  };
  const found = await root(at, () => passes);
  return { frames: [frame(passes, found.scaling.raw(found.w))], passes };
}

async function root(at, passes) {
  let low = 0.5, high = 1, bottom = await at(low), top = await at(high);
  while (bottom.value > 0 && low > 1e-8) {
    [high, top] = [low, bottom];
    low /= 4;
    bottom = await at(low);
  }
  while (top.value < 0) {
    [low, bottom] = [high, top];
    high *= 2;
    top = await at(high);
  }
  if (bottom.value > 0) return bottom;
  let [a, b, fa, fb] = [Math.log(low), Math.log(high), bottom.value, top.value];
  let best = -fa < fb ? bottom : top;
  for (let k = 0; k < 60; k += 1) {
    if (fb === fa || b - a <= 1e-12 || passes() >= MOST) break;
    const c = Math.min(Math.max(b - (fb * (b - a)) / (fb - fa), a), b);
    const here = await at(Math.exp(c)), fc = here.value, last = best.value;
    best = here;
    if (Math.abs(fc) <= TOL || (Math.abs(fc) >= 0.99 * Math.abs(last) && b - a < 1e-7)) break;
    if (fc > 0) [b, fb, fa] = [c, fc, last > 0 ? fa / 2 : fa];
    else [a, fa, fb] = [c, fc, last < 0 ? fb / 2 : fb];
  }
  return best;
}

/** w + the mean of mistaken samples, until there are none. */
export async function perceptron({ machine, running, x, y, signal }) {
  const scaling = new Scaling(x, y, { labels: false });
  const samples = scaling.samples(x).map((row, i) => times(y[i], row)), labels = zeros(x.length), rows = x.length;
  const most = Math.max(2, running.passes);
  let w = samples[0].map((_, j) => samples.reduce((sum, row) => sum + row[j], 0) / rows);
  let passes = 1, wrong = rows;
  const frames = [frame(passes, scaling.raw(w))];
  while (wrong && passes < most) {
    const margins = samples.map((row) => dot(row, w)), reach = Math.max(largest(margins), 2 ** -53);
    const found = await machine.lookUp(stepTable(reach), { x: samples, y: labels, w }, signal);
    wrong = margins.filter((m) => m <= 0).length;
    if (wrong) w = w.map((v, j) => v - found.reduce((sum, row) => sum + row[j], 0) / rows);
    passes += 1;
    frames.push(frame(passes, scaling.raw(w)));
  }
  return { frames, passes, note: wrong ? `${wrong} points are on the wrong side` : null };
}

/** The step 1{m < 0} between two tokens. */
function stepTable(reach) {
  const beta = STEP / (2 * reach) ** 2, places = [-reach, reach];
  return { center: 0, slopes: places.map((at) => 2 * beta * at), biases: places.map((at) => -beta * at * at), values: [-1, 0] };
}

// ---------------------------------------------------------------------- averages and components

const line = () => Array.from({ length: CURVE }, (_, i) => [-1 + (2 * i) / (CURVE - 1)]);
const square = () => {
  const at = (i) => -1 + (2 * i) / (PLANE - 1);
  return Array.from({ length: PLANE * PLANE }, (_, k) => [at(k % PLANE), at(Math.floor(k / PLANE))]);
};

/** Kernel averages or neighbours on the page's mesh. */
export async function average({ machine, entry, options, x, y, signal }) {
  const curve = entry.task === 'curve', mesh = curve ? line() : square();
  const near = 'n_neighbors' in options;
  const values = near ? await neighbours(machine, x, y, mesh, options.n_neighbors, signal) : await kernel(machine, x, y, mesh, options.gamma, signal);
  const rows = Array.from({ length: PLANE }, (_, i) => values.slice(i * PLANE, (i + 1) * PLANE));
  return { frames: [], passes: near ? options.n_neighbors + 1 : 1, curve: curve ? values : null, plane: curve ? null : rows };
}

/** Principal axes: the covariance times a vector is a pass; two passes span the plane. */
export async function components({ machine, tables, x, signal }) {
  const count = x.length, center = [0, 1].map((j) => x.reduce((sum, row) => sum + row[j], 0) / count);
  const moved = x.map((row) => minus(row, center));
  const scale = Math.sqrt(moved.reduce((sum, row) => sum + dot(row, row), 0) / (2 * count)) || 1;
  const found = [], values = [];
  let passes = 0;
  for (let turn = 0; turn < Math.min(2, count); turn += 1) {
    const left = moved.map((row) => times(1 / scale, row)).map((row) => found.reduce((rest, v) => minus(rest, times(dot(row, v), v)), row));
    const image = async (v) => {
      passes += 1;
      const table = tableOn(tables, largest(left.map((row) => dot(row, v))));
      const rows = await machine.lookUp(table, { x: left, y: zeros(count), w: v }, signal);
      return [0, 1].map((j) => rows.reduce((sum, row) => sum + row[j], 0) / count);
    };
    const basis = turn === 0 ? [[1, 0], [0, 1]] : [[-found[0][1], found[0][0]]];
    const images = [];
    for (const v of basis) images.push(await image(v));
    const small = basis.map((a) => images.map((b) => dot(a, b)));
    const sym = small.map((row, i) => row.map((v, j) => 0.5 * (v + small[j][i])));
    const { values: own, vectors } = eigen(sym);
    let vector = basis[0].map((_, j) => basis.reduce((sum, v, k) => sum + vectors.at(-1)[k] * v[j], 0));
    vector = times(1 / norm(vector), vector);
    const top = vector.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a));
    found.push(times(Math.sign(top) || 1, vector));
    values.push(Math.max(own.at(-1), 0));
  }
  const along = values.map((v) => Math.sqrt((scale * scale * count * v) / Math.max(count - 1, 1)));
  return { frames: [], passes, axes: [...found.map((v, k) => [...v, along[k]]), [...center, 0]] };
}
