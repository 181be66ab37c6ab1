// The state of the page: settings and points, kept in the link.

/** The frozen network's margin between blocks, as a power of two. */
export const FROZEN_MARGIN = 50;
/** Sharpness of the hard regime by rule. */
export const HARD = 12;
/** Grid tokens of the tables that the page has. */
export const TOKENS = [33, 65, 129];

export const DEFAULTS = Object.freeze({
  algorithm: 'ridge', degree: 5, formula: 'sqrt(z^2 + 0.01)',
  method: 'momentum', rate: 1, passes: 60,
  regime: 'spectral', tokens: 65, sharpness: 0,
  preset: 'wave', panel: 'passes', frame: -1,
  movedToken: 12, movedBy: 0, lesson: 0,
  margin: FROZEN_MARGIN, first: 0, z: 0.3, reach: 4,
  program: 'least_squares', text: 'greatest common divisor', cycle: 1, fetchHead: '', readHead: '', computeHead: '', writeHead: '',
});

// Settings of algorithms are named as their records name them, after this, in the link.
const OWN = 'o.';

// A point in the link: x and y in 1/2000 of the board, and the group, three characters of 12 bits.
const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
const STEPS = 1000;

/** Points as text that a link can hold: five letters each. */
export function packPoints(points) {
  return points.map(({ x, y, group }) => {
    const a = Math.round((x + 1) * STEPS), b = Math.round((y + 1) * STEPS);
    return pair(a) + pair(b) + LETTERS[group];
  }).join('');
}

/** The inverse of packPoints; null where the text is not one of ours. */
export function unpackPoints(text) {
  if (text.length % 5) return null;
  const points = [];
  for (let i = 0; i < text.length; i += 5) {
    const [a, b, c, d, g] = [...text.slice(i, i + 5)].map((letter) => LETTERS.indexOf(letter));
    const x = (64 * a + b) / STEPS - 1, y = (64 * c + d) / STEPS - 1;
    if (Math.min(a, b, c, d, g) < 0 || g > 1 || Math.abs(x) > 1 || Math.abs(y) > 1) return null;
    points.push({ x, y, group: g });
  }
  return points;
}

const pair = (number) => LETTERS[number >> 6] + LETTERS[number & 63];

/** Places that the link keeps exactly. */
export const snap = (value) => Math.round(Math.max(-1, Math.min(1, value)) * STEPS) / STEPS;

/** The link's fragment for a state; what a step of the lesson sets goes without saying. */
export function toLink(state, base = DEFAULTS) {
  const link = new URLSearchParams();
  if (state.lesson) link.set('lesson', state.lesson);
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    if (name !== 'lesson' && state[name] !== (base[name] ?? usual)) link.set(name, state[name]);
  }
  for (const [name, value] of Object.entries(state.values)) if (base.values?.[name] !== value) link.set(OWN + name, value);
  if (!state.preset) link.set('points', packPoints(state.points));
  return link.toString();
}

/** Settings from a fragment; what is not understood is left out. */
export function fromLink(fragment) {
  const found = { values: {} };
  for (const [name, text] of new URLSearchParams(fragment)) {
    if (name === 'points') {
      const points = unpackPoints(text);
      if (points?.length) Object.assign(found, { points, preset: '' });
    } else if (name.startsWith(OWN)) {
      const value = Number(text);
      if (value === value) found.values[name.slice(OWN.length)] = value;
    } else if (Object.hasOwn(DEFAULTS, name)) {
      const value = typeof DEFAULTS[name] === 'number' ? Number(text) : text;
      if (value === value) found[name] = value;
    }
  }
  return found;
}

/** What the engine is asked for a fit. */
export function fitQuestion(state) {
  return {
    points: state.points,
    model: { ...loss(state), degree: state.degree },
    running: { method: state.method, rate: state.rate, passes: state.passes },
    lookup: lookup(state),
  };
}

/** What the engine is asked for a view of a prompt. */
export function insideQuestion(state, frame) {
  const margin = state.margin === FROZEN_MARGIN ? null : 2 ** state.margin;
  return { ...fitQuestion(state), margin, first: state.first, frame };
}

/** What the engine is asked for look-up tables. */
export function lookupQuestion(state) {
  return { loss: loss(state), lookup: lookup(state), reach: state.reach };
}

function loss({ algorithm, formula, sliders, values }) {
  return { algorithm, formula, options: Object.fromEntries(sliders.map((one) => [one.name, settingOf(one, values)])) };
}

/** What a slider is set to: its start where nothing else fits its range. */
export function settingOf({ name, low, high, start, zero, choices }, values) {
  const value = values[name];
  if (choices) return choices.includes(value) ? value : choices.includes(start) ? start : choices[0];
  const fits = value !== undefined && ((value >= low && value <= high) || (zero && value === 0));
  return fits ? value : start;
}

function lookup({ regime, tokens, sharpness, movedToken, movedBy }) {
  const moved = movedBy ? { token: movedToken, by: movedBy } : null;
  return { regime, tokens: TOKENS.includes(tokens) ? tokens : DEFAULTS.tokens, sharpness: sharpness || null, moved };
}
