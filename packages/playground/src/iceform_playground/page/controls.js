// Sliders and choices, built from one table.

import { el } from './dom.js';
import { short } from './model.js';
import { settingOf } from './state.js';

const METHODS = { gradient: 'gradient descent', momentum: 'momentum', newton: 'Newton (whitened)' };
const REGIMES = { spectral: 'spectral', hard: "hard (the paper's)" };
const whole = (low, high) => ({ low, high, step: 1 });
// A slider over powers of ten; a lowest value of 0 is its left end.
const powers = (low, high, zero = false) => ({ low, high, step: 0.05, log: true, zero });

export const FIELDS = {
  degree: { title: 'Degree of the features', ...whole(1, 7) },
  formula: { title: 'Loss of the residual z', text: true,
    hint: 'for example z^2/2, log(cosh(4*z))/4, sqrt(z^2 + 0.01), softplus(z) − z/2' },
  method: { title: 'Kind of step', choices: METHODS },
  rate: { title: 'Learning rate, in units of 1/L', ...powers(-2, 0.6) },
  passes: { title: 'Steps', ...whole(1, 200) },
  regime: { title: 'Regime', choices: REGIMES },
  tokens: { title: 'Grid tokens', ...whole(4, 129), auto: { at: 4, stored: 0, name: 'as many as ε needs' } },
  eps: { title: 'ε, certified error of the look-up', ...powers(-14, -0.3) },
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
    return control(name, { [name]: String(settingOf(slider, values)) }, (key, value) => change(key, Number(value)), false, { title, choices: offered });
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
    const options = Object.entries(field.choices).map(([value, title]) => el('option', { value, selected: state[name] === value }, title));
    return el('div', { className: 'field' }, label,
      el('select', { id, disabled, onchange: (event) => change(name, event.target.value) }, ...options));
  }
  if (field.text) {
    return el('div', { className: 'field' }, label,
      el('input', { id, type: 'text', value: state[name], maxLength: 200, spellcheck: false, autocomplete: 'off',
        'aria-describedby': `${id}-hint`, oninput: (event) => change(name, event.target.value) }),
      el('p', { id: `${id}-hint`, className: 'quiet' }, field.hint));
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
