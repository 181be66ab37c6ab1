// Prompts of the look-up layer, written as iceform.heads.lookups writes them.
//
// A prompt has `samples` blocks of `tokens` grid tokens, a query for each block and as many free
// queries. A token has the features key_x, key_y, key_bias, value and w.

const HIDDEN = 2 ** 45; // of tokens that hold nothing, as the library has it

/** Where in a prompt everything is. */
export class Layout {
  constructor({ dim, samples, tokens }) {
    Object.assign(this, { dim, samples, tokens });
    this.grid = samples * tokens;
    this.count = this.grid + 2 * samples;
    this.at = { keyX: 0, keyY: dim, keyBias: dim + 1, value: dim + 2, w: 2 * dim + 3 };
    this.features = 3 * dim + 3;
    this.rows = 2 * samples; // that a prompt is answered with
    this.wide = dim + 1; // of a row
  }

  /** Empty prompts, all grid tokens hidden. */
  blank(prompts) {
    const { count, features, grid, at } = this;
    const tokens = new Float64Array(prompts * count * features);
    for (let p = 0; p < prompts; p += 1) {
      for (let k = 0; k < grid; k += 1) tokens[(p * count + k) * features + at.keyBias] = -HIDDEN;
    }
    return tokens;
  }

  /** Names of the features, as the library has them. */
  names() {
    const many = (name, n) => Array.from({ length: n }, (_, i) => `${name}[${i}]`);
    return [...many('key_x', this.dim), 'key_y', 'key_bias', ...many('value', this.dim + 1), ...many('w', this.dim)];
  }
}

/**
 * Look-ups of z_i = w.x_i - y_i: sample i is answered with (A(z_i) - o_i) (x_i, 1).
 * @param {{slopes: number[], biases: number[], values: number[], center: number}} table
 * @param {{x: number[][], y: number[], w: number[], offsets: ?number[]}} data
 */
export function lookUps(layout, table, { x, y, w, offsets = null }) {
  const { samples, tokens: wide, count, features, at, dim } = layout;
  const prompts = Math.ceil(x.length / samples), d = w.length, grid = table.slopes.length;
  const tokens = layout.blank(prompts);
  for (let i = 0; i < prompts * samples; i += 1) {
    const first = Math.floor(i / samples) * count, block = i % samples;
    const sample = i < x.length ? x[i] : null; // the last prompt is filled with zeros
    const label = (sample ? y[i] : 0) + table.center, offset = sample && offsets ? offsets[i] : 0;
    for (let k = 0; k < grid; k += 1) {
      const token = (first + block * wide + k) * features, looked = table.values[k] - offset;
      for (let j = 0; j < d; j += 1) {
        tokens[token + at.keyX + j] = table.slopes[k] * (sample ? sample[j] : 0);
        tokens[token + at.value + j] = looked * (sample ? sample[j] : 0);
      }
      tokens[token + at.keyY] = table.slopes[k] * label;
      tokens[token + at.keyBias] = table.biases[k];
      tokens[token + at.value + dim] = looked;
    }
    const query = (first + layout.grid + block) * features;
    for (let j = 0; j < d; j += 1) tokens[query + at.w + j] = w[j];
  }
  return { tokens, prompts };
}

/**
 * Averages of values with logits q.key_j + bias_j. Points share a prompt, unless what they see
 * differs (`seen`, or biases of each point's own): then each has one of its own.
 * @param {{keys: number[][], biases: number[] | number[][], values: number[][], points: number[][],
 *   seen: ?boolean[][]}} data
 */
export function averages(layout, { keys, biases, values, points, seen = null }) {
  const { samples, count, features, at } = layout;
  const apart = seen !== null || Array.isArray(biases[0]);
  const each = apart ? 1 : samples, prompts = Math.ceil(points.length / each);
  const tokens = layout.blank(prompts);
  for (let p = 0; p < prompts; p += 1) {
    const own = Array.isArray(biases[0]) ? biases[p] : biases;
    keys.forEach((key, n) => {
      const token = (p * count + n) * features;
      tokens.set(key, token + at.keyX);
      tokens[token + at.keyBias] = own[n] - (seen && !seen[p][n] ? HIDDEN : 0);
      tokens.set(values[n], token + at.value);
    });
    points.slice(p * each, (p + 1) * each).forEach((point, q) => {
      tokens.set(point, (p * count + layout.grid + samples + q) * features + at.w);
    });
  }
  return { tokens, prompts, each };
}
