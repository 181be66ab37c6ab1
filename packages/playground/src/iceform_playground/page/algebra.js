// Small dense linear algebra: vectors are arrays, matrices arrays of rows.

export const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
export const plus = (a, b) => a.map((v, i) => v + b[i]);
export const minus = (a, b) => a.map((v, i) => v - b[i]);
export const times = (c, a) => a.map((v) => c * v);
export const norm = (a) => Math.sqrt(dot(a, a));
export const largest = (a) => a.reduce((most, v) => Math.max(most, Math.abs(v)), 0);
export const zeros = (n) => new Array(n).fill(0);
export const apply = (rows, v) => rows.map((row) => dot(row, v));
export const transposed = (rows) => rows[0].map((_, j) => rows.map((row) => row[j]));

/** sum_i c_i x_i x_i'. */
export function gram(rows, weights) {
  const p = rows[0].length, found = Array.from({ length: p }, () => zeros(p));
  rows.forEach((row, i) => {
    for (let a = 0; a < p; a += 1) for (let b = 0; b < p; b += 1) found[a][b] += weights[i] * row[a] * row[b];
  });
  return found;
}

const SWEEPS = 60;

/** Eigenvalues of a symmetric matrix, increasing, and its eigenvectors as rows (Jacobi). */
export function eigen(matrix) {
  const n = matrix.length, a = matrix.map((row) => [...row]);
  const v = a.map((_, i) => a.map((__, j) => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    let off = 0;
    for (let p = 0; p < n; p += 1) for (let q = p + 1; q < n; q += 1) off += Math.abs(a[p][q]);
    if (off === 0) break;
    for (let p = 0; p < n; p += 1) for (let q = p + 1; q < n; q += 1) rotate(a, v, p, q);
  }
  const order = a.map((_, i) => i).sort((i, j) => a[i][i] - a[j][j]);
  return { values: order.map((i) => a[i][i]), vectors: order.map((i) => v.map((row) => row[i])) };
}

function rotate(a, v, p, q) {
  if (Math.abs(a[p][q]) <= 1e-300 || Math.abs(a[p][q]) < 1e-18 * Math.sqrt(Math.abs(a[p][p] * a[q][q]))) {
    a[p][q] = a[q][p] = 0;
    return;
  }
  const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
  const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.hypot(theta, 1));
  const c = 1 / Math.hypot(t, 1), s = t * c;
  for (let k = 0; k < a.length; k += 1) {
    [a[k][p], a[k][q]] = [c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]];
  }
  for (let k = 0; k < a.length; k += 1) {
    [a[p][k], a[q][k]] = [c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]];
    [v[k][p], v[k][q]] = [c * v[k][p] - s * v[k][q], s * v[k][p] + c * v[k][q]];
  }
  a[p][q] = a[q][p] = 0;
}

/** The metric of a Gram matrix, as iceform_estimators.machine.problem.metric_of has it. */
export class Metric {
  constructor(matrix, rows) {
    this.scale = matrix.map((row, j) => 2 ** Math.round(Math.log2(row[j] > 0 ? Math.sqrt(row[j]) : 1)));
    const { values, vectors } = eigen(matrix.map((row, i) => row.map((v, j) => v / this.scale[i] / this.scale[j])));
    const noise = 4 * (matrix.length + Math.sqrt(rows)) * Number.EPSILON * Math.max(values.at(-1), 0);
    const kept = values.map((_, k) => k).filter((k) => values[k] > noise);
    this.whitener = kept.map((k) => vectors[k].map((v, j) => v / Math.sqrt(values[k]) / this.scale[j])); // T', by rows
    this.factor = kept.map((k) => vectors[k].map((v, j) => v * Math.sqrt(values[k]) * this.scale[j]));
  }

  /** Length of the step that a gradient asks for. */
  norm(gradient) { return norm(apply(this.whitener, gradient)); }

  /** Length of w. */
  size(w) { return norm(apply(this.factor, w)); }

  /** H^+ g. */
  step(gradient) {
    const inner = apply(this.whitener, gradient);
    return gradient.map((_, j) => inner.reduce((sum, v, k) => sum + v * this.whitener[k][j], 0));
  }
}
