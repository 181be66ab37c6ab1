// Sliders and choices, built from one table.

import { el } from './dom.js';
import { short } from './model.js';
import { settingOf, TOKENS } from './state.js';

const METHODS = { gradient: 'gradient descent', momentum: 'momentum', newton: 'Newton (whitened)' };
const REGIMES = { spectral: 'spectral', hard: "hard (the paper's)" };
const FORMULAS = ['sqrt(z^2 + 0.01)', 'log(cosh(4*z))/4', 'softplus(z) - z/2', 'z^2/2'];
const themselves = (all) => Object.fromEntries(all.map((one) => [one, String(one)]));
const whole = (low, high) => ({ low, high, step: 1 });
// A slider over powers of ten; a lowest value of 0 is its left end.
const powers = (low, high, zero = false) => ({ low, high, step: 0.05, log: true, zero });

export const FIELDS = {
  degree: { title: 'Degree of the features', ...whole(1, 7) },
  formula: { title: 'Loss of the residual z', choices: themselves(FORMULAS) },
  method: { title: 'Kind of step', choices: METHODS },
  rate: { title: 'Learning rate, in units of 1/L', ...powers(-2, 0.6) },
  passes: { title: 'Steps', ...whole(1, 200) },
  regime: { title: 'Regime', choices: REGIMES },
  tokens: { title: 'Grid tokens', choices: themselves(TOKENS), number: true },
  sharpness: { title: 'Sharpness c', ...powers(-1.7, 1.8), auto: { at: -1.7, stored: 0, name: 'by rule' } },
};

const STEPS = 50; // of a slider that an algorithm's record describes, about

/** A step of 1, 2 or 5 times a power of ten. */
function rounded(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return Number((power * [1, 2, 5, 10].find((digit) => digit * power >= 0.99 * step)).toPrecision(3));
}

/** A control for a setting that an algorithm's record describes. */
export function ownControl(slider, values, change) {
  const { name, title, low, high, whole: counted, powers: byPowers, zero, choices } = slider;
  if (choices) {
    const offered = Object.fromEntries(choices.map((value) => [value, short(value)]));
    return control(name, { [name]: settingOf(slider, values) }, change, false, { title, choices: offered, number: true });
  }
  const range = byPowers ? powers(Math.log10(low), Math.log10(high), zero)
    : { low, high, step: counted ? 1 : rounded((high - low) / STEPS) };
  return control(name, { [name]: settingOf(slider, values) }, change, false, { title, ...range });
}

/** The position of a slider for a value. */
function position(field, value) {
  if (field.auto && value === field.auto.stored) return field.auto.at;
  if (!field.log) return value;
  return value > 0 ? Math.log10(value) : field.low;
}

/** The value at a position of a slider. */
function valueAt(field, at) {
  if (field.auto && at <= field.auto.at) return field.auto.stored;
  if (!field.log) return Number(at.toFixed(6));
  if (field.zero && at <= field.low) return 0;
  return Number((10 ** at).toPrecision(3));
}

const spoken = (field, value) => (field.auto && value === field.auto.stored ? field.auto.name : short(value));

/**
 * A labelled control for one setting.
 * @param {(name: string, value: any) => void} change
 */
export function control(name, state, change, disabled = false, field = FIELDS[name]) {
  const id = `set-${name}`;
  const label = el('label', { for: id }, field.title);
  if (field.choices) {
    const options = Object.entries(field.choices).map(([value, title]) => el('option', { value, selected: String(state[name]) === value }, title));
    return el('div', { className: 'field' }, label,
      el('select', { id, disabled, onchange: ({ target }) => change(name, field.number ? Number(target.value) : target.value) }, ...options));
  }
  const output = el('output', { for: id }, spoken(field, state[name]));
  const slider = el('input', {
    id, type: 'range', min: field.low, max: field.high, step: field.step, disabled,
    oninput: (event) => {
      const value = valueAt(field, Number(event.target.value));
      output.textContent = spoken(field, value);
      slider.setAttribute('aria-valuetext', spoken(field, value));
      change(name, value);
    },
  });
  slider.value = position(field, state[name]);
  slider.setAttribute('aria-valuetext', spoken(field, state[name]));
  return el('div', { className: disabled ? 'field dim' : 'field' }, label, output, slider);
}
