// Linear models in this page: one frozen layer for every gradient, the loop of iceform_playground.paths.

import { dot, eigen, gram, largest, Metric, minus, plus, times, zeros } from './algebra.js';
import { Trouble } from './trouble.js';

const STILL = 1e-15; // a step this short, relative to the coefficients, is the last
const WIDENINGS = 8;
const LEVEL = 2 ** 10; // in thresholds: far beyond the kinks of a soft threshold
const [ACCEPT, SUFFICIENT, HALVINGS, LEAP] = [0.7, 0.25, 40, 1e3]; // of Newton steps, as in iceform_estimators.machine.solvers
const [PATIENCE, PROGRESS] = [12, 0.9];

const diverges = (reach) => new Trouble({ kind: 'refused', message:
  `a residual reaches ${reach.toPrecision(3)}: the steps are too long and the iteration diverges; lower the learning rate, or take a loss that has a least value` });

/** The table on [-R, R], R being the least power of two that covers `reach`, out of those stored. */
export function tableOn(tables, reach, least = 1) {
  const wide = 2 ** Math.ceil(Math.log2(Math.max(reach, least)));
  const table = tables[wide];
  if (!table) throw diverges(reach);
  return table;
}

// ------------------------------------------------------------------------------------ scaling

/** x -> [(x - mean) / scale, 1] and y -> (y - center) / size. */
export class Scaling {
  constructor(x, y, { labels, size = null }) {
    const n = x.length, columns = x[0].map((_, j) => x.map((row) => row[j]));
    this.mean = columns.map((column) => mean(column));
    const spread = (column, middle) => Math.sqrt(column.reduce((sum, v) => sum + (v - middle) ** 2, 0) / n);
    this.scale = columns.map((column, j) => {
      const scale = spread(column, this.mean[j]);
      return scale <= 8 * Number.EPSILON * Math.abs(this.mean[j]) || scale === 0 ? 1 : scale;
    });
    this.center = labels ? mean(y) : 0;
    this.size = size ?? ((labels ? spread(y, this.center) : 1) || 1);
  }

  samples(x) { return x.map((row) => [...row.map((v, j) => (v - this.mean[j]) / this.scale[j]), 1]); }

  labels(y) { return y.map((v) => (v - this.center) / this.size); }

  /** Coefficients and intercept of the data as they came. */
  raw(w) {
    const coef = this.scale.map((s, j) => (this.size * w[j]) / s);
    return { coef, intercept: this.size * w.at(-1) + this.center - dot(this.mean, coef) };
  }

  penalty(l2) { return [...this.scale.map((s) => l2 / (s * s)), 0]; }

  with(size) { return Object.assign(Object.create(Scaling.prototype), this, { size }); }
}

function mean(values) {
  const first = values.reduce((a, b) => a + b, 0) / values.length;
  return first + values.reduce((sum, v) => sum + (v - first), 0) / values.length;
}

// ------------------------------------------------------------------------------------ problems

/** F(w) = mean_i l(w.x_i - y_i) + (1/2) sum_j q_j w_j^2 on scaled data; `look` finds gradients. */
export class Problem {
  constructor({ scaling, x, y, kind, loss, ridge }) {
    const samples = scaling.samples(x);
    Object.assign(this, { scaling, loss, ridge, passes: 0, rows: x.length, reach: 1, tried: 1 });
    this.samples = kind === 'margin' ? samples.map((row, i) => times(y[i], row)) : samples;
    this.labels = kind === 'residual' ? scaling.labels(y) : y.map(() => 0);
    this.offsets = kind === 'glm' ? y : null;
    this.dim = samples[0].length;
    if (loss.quadratic) this.reach = this.tried = largest(this.labels);
  }

  start() { return zeros(this.dim); }

  residuals(w) { return this.samples.map((row, i) => dot(row, w) - this.labels[i]); }

  /** Total of (f_i - o_i) x_i. */
  added(slopes) {
    const total = zeros(this.dim);
    this.samples.forEach((row, i) => {
      const share = slopes[i] - (this.offsets ? this.offsets[i] : 0);
      for (let j = 0; j < total.length; j += 1) total[j] += share * row[j];
    });
    return total;
  }

  mean(total, w) { return total.map((v, j) => v / this.rows + this.ridge[j] * w[j]); }

  hessian(w, above = false) {
    const bend = above && this.loss.above ? this.loss.above : this.loss.bend;
    const found = gram(this.samples, this.residuals(w).map(bend));
    return found.map((row, a) => row.map((v, b) => v / this.rows + (a === b ? this.ridge[a] : 0)));
  }

  keep() { this.reach = this.tried; }
}

/** By the frozen layer: its gradients are looked up. */
export class LookedProblem extends Problem {
  constructor(parts, { machine, tables, clips, least = 1, signal = null }) {
    super(parts);
    Object.assign(this, { machine, tables, clips, least, signal });
  }

  async gradient(w, trial = false) {
    let { reach } = this;
    const far = largest(this.residuals(w));
    for (let k = 0; k < WIDENINGS; k += 1) {
      const table = tableOn(this.tables, reach, this.least);
      this.passes += 1;
      if (far <= table.high) {
        const rows = await this.machine.lookUp(table, { x: this.samples, y: this.labels, w, offsets: this.offsets }, this.signal);
        const total = zeros(this.dim);
        for (const row of rows) for (let j = 0; j < total.length; j += 1) total[j] += row[j];
        this.tried = reach;
        if (!trial) this.keep();
        return this.mean(total, w);
      }
      reach = table.high + (far - table.high);
    }
    throw diverges(far);
  }

  /** Soft thresholds u - tau clip(u/tau), looked up by one prompt. */
  async shrink(u, tau) {
    const active = u.map((_, j) => j).filter((j) => tau[j] > 0);
    if (!active.length) return u;
    const ratio = active.map((j) => Math.max(-LEVEL, Math.min(LEVEL, u[j] / tau[j])));
    const table = tableOn(this.clips, largest(ratio), 2 ** -6);
    const clipped = await this.machine.lookUpAll(table, ratio, this.signal);
    const out = [...u];
    active.forEach((j, k) => {
      const left = u[j] - tau[j] * clipped[k];
      out[j] = Math.abs(left) <= 2 * table.error * tau[j] ? 0 : left;
    });
    return out;
  }
}

/** Without the machine. */
export class ExactProblem extends Problem {
  async gradient(w) {
    this.passes += 1;
    return this.mean(this.added(this.residuals(w).map(this.loss.slope)), w);
  }

  async shrink(u, tau) { return u.map((v, j) => Math.sign(v) * Math.max(0, Math.abs(v) - tau[j])); }
}

// --------------------------------------------------------------------------------------- loops

/** Scaled coefficients from w = 0 on, one step after the other. */
export function steps(problem, { method, rate }, thresholds, bend) {
  if (method === 'newton' && !thresholds.some((t) => t > 0)) return newton(problem);
  return descent(problem, rate / steepest(problem, bend), thresholds, method !== 'gradient');
}

/** The Hessian's largest eigenvalue at most. */
function steepest(problem, bend) {
  const moments = gram(problem.samples, problem.samples.map(() => 1)).map((row) => row.map((v) => v / problem.rows));
  return Math.max(bend, 0) * eigen(moments).values.at(-1) + Math.max(...problem.ridge) || 1;
}

async function* descent(problem, eta, thresholds, momentum) {
  let w = problem.start(), ahead = w, t = 1;
  for (;;) {
    yield w;
    const moved = minus(ahead, times(eta, await problem.gradient(ahead)));
    const after = await problem.shrink(moved, times(eta, thresholds));
    const uphill = dot(minus(ahead, after), minus(after, w)) > 0;
    if (uphill || !momentum) [ahead, t] = [after, 1];
    else {
      const grown = 0.5 * (1 + Math.sqrt(1 + 4 * t * t));
      [ahead, t] = [plus(after, times((t - 1) / grown, minus(after, w))), grown];
    }
    w = after;
  }
}

async function* newton(problem) {
  let w = problem.start();
  const first = new Metric(problem.hessian(w, true), problem.rows);
  yield w;
  let gradient = await problem.gradient(w);
  for (;;) {
    const metric = problem.loss.quadratic ? first : new Metric(problem.hessian(w), problem.rows);
    const last = w;
    ({ w, gradient } = await advance(problem, w, gradient, metric, first));
    yield w;
    if (largest(minus(w, last)) <= STILL * Math.max(1, largest(w))) return;
  }
}

/** A Newton step if it is no leap and brings the gradient down, else a safe one. */
async function advance(problem, w, gradient, metric, first) {
  const step = metric.step(gradient);
  const to = async (moved, trial = false) => ({ w: minus(w, moved), gradient: await problem.gradient(minus(w, moved), trial) });
  if (problem.loss.quadratic) return to(step);
  const start = first.norm(gradient);
  if (first.size(step) <= LEAP) {
    const after = await to(step, true);
    if (first.norm(after.gradient) <= ACCEPT * start) {
      problem.keep();
      return after;
    }
  }
  if (problem.loss.above) return to(new Metric(problem.hessian(w, true), problem.rows).step(gradient));
  let share = Math.min(0.5, LEAP / Math.max(first.size(step), LEAP)), after = null;
  for (let k = 0; k < HALVINGS; k += 1) {
    after = await to(times(share, step), true);
    if (first.norm(after.gradient) <= (1 - SUFFICIENT * share) * start) break;
    share *= 0.5;
  }
  problem.keep();
  return after;
}

/** The minimiser by Newton's method; its last step's length says whether it is one. */
export async function minimise(problem, { tol, most, start = null }) {
  let w = start ?? problem.start();
  const first = new Metric(problem.hessian(w, true), problem.rows);
  let gradient = await problem.gradient(w), metric = first;
  let last = first.norm(gradient), best = Infinity, since = 0;
  while (problem.passes < most) {
    if (!problem.loss.quadratic) metric = new Metric(problem.hessian(w), problem.rows);
    const length = metric.norm(gradient);
    if (length <= tol * Math.max(1, metric.size(w))) return { w, length };
    if (last < PROGRESS * best) [best, since] = [last, 0];
    else if ((since += 1) >= PATIENCE) break;
    ({ w, gradient } = await advance(problem, w, gradient, metric, first));
    last = first.norm(gradient);
  }
  return { w, length: metric.norm(gradient) };
}
