// A certificate as tables, and what ran.

import { el } from './dom.js';
import { atLeast, atMost } from './model.js';

const row = (...cells) => el('tr', {}, ...cells);
const number = (value, round = atMost) => el('td', { className: 'number' }, value === null ? 'no bound' : round(value));
const heading = (...names) => el('thead', {}, row(...names.map(([name, right]) => el('th', { scope: 'col', className: right ? 'number' : '' }, name))));
const table = (caption, head, rows) => el('div', { className: 'scroll' }, el('table', {}, el('caption', {}, caption), head, el('tbody', {}, ...rows)));

/** Why, what for, and what was computed where: of an answer {certificate, attestation, ledger}. */
export function proof({ certificate, attestation, ledger }) {
  const { kind, terms, domain, derivation, assumptions } = certificate;
  return [
    table('Why', heading(['symbol'], ['what it is'], ['value', true], ['because']), derivation.map((s) =>
      row(el('td', {}, s.symbol), el('td', {}, s.formula), number(s.value, s.least ? atLeast : atMost), el('td', {}, s.why)))),
    table('Terms', heading(['term'], ['at most', true]), Object.entries(terms).map(([name, value]) =>
      row(el('td', {}, name), number(value)))),
    table('It holds for', heading(['what'], ['range']), Object.entries(domain).map(([name, value]) =>
      row(el('td', {}, name), el('td', {}, value)))),
    el('p', {}, 'What ran, and what was computed where:'),
    el('pre', { className: 'scroll' }, `${attestation}\n\n${ledger}`),
    el('p', { className: 'quiet' }, assumptions.length ? `${kind === 'proven' ? 'It' : `It is ${kind}, not proven: it`} takes for granted that: ${assumptions.join('; ')}.` : 'It takes nothing for granted beyond IEEE arithmetic and the accuracy of exp.'),
  ];
}
