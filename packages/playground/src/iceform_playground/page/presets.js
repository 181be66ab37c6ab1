// Points to start from, and points from text. The same name always gives the same points.

import { snap } from './state.js';

/** A small generator of numbers in [0, 1), the same everywhere. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Standard normal numbers by sums of twelve uniform ones. */
const normal = (next) => Array.from({ length: 12 }, next).reduce((a, b) => a + b) - 6;

function scattered(count, seed, make) {
  const next = generator(seed);
  return Array.from({ length: count }, (_, i) => {
    const { x, y, group } = make(next, i);
    return { x: snap(x), y: snap(y), group };
  });
}

export const PRESETS = {
  wave: { title: 'A wave', points: () => scattered(80, 3, (next) => {
    const x = 1.9 * next() - 0.95, y = 0.6 * Math.sin(3.4 * x) + 0.1 * normal(next);
    return { x, y, group: y > 0 ? 1 : 0 };
  }) },
  outliers: { title: 'A line with outliers', points: () => scattered(60, 5, (next, i) => {
    const x = 1.9 * next() - 0.95, far = i % 6 === 0;
    const y = far ? 0.75 + 0.12 * normal(next) : 0.5 * x - 0.25 + 0.06 * normal(next);
    return { x, y, group: far ? 1 : 0 };
  }) },
  fan: { title: 'Noise that grows', points: () => scattered(200, 7, (next) => {
    const x = 1.9 * next() - 0.95, y = 0.4 * x + 0.22 * (x + 1.05) * normal(next);
    return { x, y, group: y > 0.4 * x ? 1 : 0 };
  }) },
  blobs: { title: 'Two clouds', points: () => scattered(120, 11, (next, i) => {
    const group = i % 2, side = group ? 1 : -1;
    return { x: 0.38 * side + 0.24 * normal(next), y: 0.3 * side + 0.24 * normal(next), group };
  }) },
  moons: { title: 'Two moons', points: () => scattered(160, 13, (next, i) => {
    const group = i % 2, turn = Math.PI * next(), side = group ? -1 : 1;
    const x = 0.5 * Math.cos(turn) * side - 0.22 * side, y = 0.5 * Math.sin(turn) * side - 0.12 * side;
    return { x: x + 0.06 * normal(next), y: y + 0.06 * normal(next), group };
  }) },
  rings: { title: 'A ring around a cloud', points: () => scattered(160, 17, (next, i) => {
    const group = i % 2, turn = 2 * Math.PI * next();
    const radius = (group ? 0.75 : 0.2) + 0.08 * normal(next);
    return { x: radius * Math.cos(turn), y: radius * Math.sin(turn), group };
  }) },
};

/**
 * Points from lines of text: x, y and perhaps a group, apart by commas, semicolons or blanks.
 * A first line that is no numbers is a heading. Throws an Error that names the line.
 */
export function parsePoints(text, most) {
  const lines = text.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);
  const rows = lines.map((line) => line.split(/[\s,;]+/).map(Number));
  if (rows.length && rows[0].some(Number.isNaN)) rows.shift();
  if (!rows.length) throw new Error('There is no point in this text; write lines such as 0.2, 0.5');
  if (rows.length > most) {
    throw new Error(`${rows.length} points are more than the ${most} that the board holds`);
  }
  rows.forEach((row, i) => {
    if (row.length < 2 || row.length > 3 || !row.every(Number.isFinite)) {
      throw new Error(`Point ${i + 1} must be two numbers, or two numbers and a group`);
    }
    if (row.length === 3 && row[2] !== 0 && row[2] !== 1) {
      throw new Error(`The group of point ${i + 1} must be 0 or 1, not ${row[2]}`);
    }
  });
  const [toX, toY] = [0, 1].map((column) => rescale(rows.map((row) => row[column])));
  return rows.map(([x, y, group = 0]) => ({ x: snap(toX(x)), y: snap(toY(y)), group }));
}

/** The identity for values within the board, else a linear map into it. */
function rescale(values) {
  const low = Math.min(...values), high = Math.max(...values);
  if (low >= -1 && high <= 1) return (value) => value;
  return (value) => (high > low ? (1.8 * (value - low)) / (high - low) - 0.9 : 0);
}
