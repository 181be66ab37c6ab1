// Models as the page draws them: the readout of the coefficients that the machine found.

const PLANE_DEGREE = 3;

/** Legendre polynomials P_0 .. P_degree at x. */
function legendre(x, degree) {
  const values = [1, x];
  for (let j = 1; j < degree; j += 1) values.push(((2 * j + 1) * x * values[j] - j * values[j - 1]) / (j + 1));
  return values;
}

/** Pairs of degrees (in x, in y) of the features, in the library's order. */
function degrees(task, degree) {
  if (task === 'curve') return Array.from({ length: degree }, (_, j) => [j + 1, 0]);
  const pairs = [];
  for (let total = 1; total <= Math.min(degree, PLANE_DEGREE); total += 1) {
    for (let j = 0; j <= total; j += 1) pairs.push([total - j, j]);
  }
  return pairs;
}

/** Names of the features. */
export function featureNames(task, degree) {
  const named = (variable, d) => (d === 0 ? '' : d === 1 ? variable : `P${'₂₃₄₅₆₇'[d - 2]}(${variable})`);
  return degrees(task, degree).map(([a, b]) => named('x', a) + named('y', b));
}

/** The features of a place. */
export function features(task, degree, x, y) {
  const px = legendre(x, degree), py = legendre(y, degree);
  return degrees(task, degree).map(([a, b]) => px[a] * py[b]);
}

/** f(x, y) of a linear model. */
export function linear(task, degree, coef, intercept) {
  const pairs = degrees(task, degree);
  return (x, y) => {
    const px = legendre(x, degree), py = legendre(y, degree);
    return pairs.reduce((sum, [a, b], j) => sum + coef[j] * px[a] * py[b], intercept);
  };
}

/** Values of a function on a square mesh of [-1, 1]^2, by rows of y. */
export function onMesh(f, count) {
  const at = (i) => -1 + (2 * i) / (count - 1);
  return Array.from({ length: count }, (_, i) => Array.from({ length: count }, (_, j) => f(at(j), at(i))));
}

/**
 * Line segments [x0, y0, x1, y1] where values on a square mesh cross a level, by marching squares.
 */
export function contour(values, level) {
  const count = values.length, at = (i) => -1 + (2 * i) / (count - 1);
  const segments = [];
  for (let i = 0; i + 1 < count; i += 1) {
    for (let j = 0; j + 1 < count; j += 1) {
      const corners = [
        [at(j), at(i), values[i][j] - level], [at(j + 1), at(i), values[i][j + 1] - level],
        [at(j + 1), at(i + 1), values[i + 1][j + 1] - level], [at(j), at(i + 1), values[i + 1][j] - level],
      ];
      const crossings = [];
      for (let k = 0; k < 4; k += 1) {
        const [ax, ay, a] = corners[k], [bx, by, b] = corners[(k + 1) % 4];
        if (a > 0 !== b > 0) {
          const share = a / (a - b);
          crossings.push([ax + share * (bx - ax), ay + share * (by - ay)]);
        }
      }
      for (let k = 0; k + 1 < crossings.length; k += 2) segments.push([...crossings[k], ...crossings[k + 1]]);
    }
  }
  return segments;
}

/** Attention of z over the tokens of a table. */
export function weights(table, z) {
  const logits = table.slopes.map((slope, k) => slope * (z - table.center) + table.biases[k]);
  const top = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - top));
  const total = powers.reduce((a, b) => a + b);
  return powers.map((value) => value / total);
}

/** What a table returns for z. */
export function lookUp(table, z) {
  return weights(table, z).reduce((sum, weight, k) => sum + weight * table.values[k], 0);
}

/** A number in a few characters. */
export function short(value, digits = 3) {
  if (value === null || value === undefined) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(digits)));
  const [mantissa, exponent] = value.toExponential(Math.max(0, digits - 2)).split('e');
  return `${mantissa}·10${superscript(Number(exponent))}`;
}

/** An upper bound in a few characters: rounded up, for a bound that is rounded down is none. */
export const atMost = (value, digits = 3) => directed(value, digits, 1);

/** A lower bound in a few characters: rounded down. */
export const atLeast = (value, digits = 3) => directed(value, digits, -1);

/** What is known of an error: "proven ≤ 1.3·10⁻⁹", or "estimated ≤ …"; `none` where it has no bound. */
export const bounded = (error, kind, none = 'no bound') => (error === null ? none : `${kind} ≤ ${atMost(error)}`);

/** `short` rounded away from zero where that is the way of `sign`, else towards it; exactly so. */
function directed(value, digits, sign) {
  if (value === null || value === undefined || value === 0) return short(value, digits);
  const size = Math.abs(value), fixed = size >= 1e-3 && size < 1e5;
  const kept = fixed ? digits : Math.max(1, digits - 1);
  // A float has more digits than these, but none that begins with so many zeros.
  const [spelled, power] = size.toExponential(100).split('e');
  const all = spelled.replace('.', ''), outward = (value > 0) === (sign > 0) && /[1-9]/.test(all.slice(kept));
  const rounded = String(BigInt(all.slice(0, kept)) + (outward ? 1n : 0n));
  const exponent = Number(power) + rounded.length - kept, minus = value < 0 ? '-' : '';
  if (fixed) return minus + Number(`${rounded}e${Number(power) - kept + 1}`);
  const mantissa = rounded.slice(0, kept);
  return `${minus}${mantissa[0]}${kept > 1 ? `.${mantissa.slice(1)}` : ''}·10${superscript(exponent)}`;
}

function superscript(number) {
  return [...String(number)].map((c) => (c === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[c])).join('');
}
