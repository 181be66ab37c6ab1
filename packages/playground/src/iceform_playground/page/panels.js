// The panels: what happened inside.

import { el } from './dom.js';
import { drawDescent } from './descent.js';
import { ask } from './engine.js';
import { atMost, bounded, lookUp, short, weights } from './model.js';
import { colours, diverging, plot, rising } from './plots.js';
import { LESSON } from './lesson.js';
import { drawProgram } from './program.js';
import { FROZEN_MARGIN, HARD, insideQuestion, lookupQuestion } from './state.js';
import { drawText } from './text.js';

const READS = 'A look-up reads the few grid tokens around its z and nothing of the other points; an average reads the points around.';

/**
 * Every panel: a title, how to draw it, and whether it can be drawn without an answer.
 * `draw(node, page)` gets the page: {state, set, answer, frame, entry}.
 */
export const PANELS = {
  descent: { title: 'Live GPT-2', draw: drawDescent, own: true },
  passes: { title: 'Error by step', draw: drawPasses },
  prompt: { title: 'Prompt', draw: drawPrompt },
  attention: { title: 'Attention', draw: drawAttention },
  lookup: { title: 'Look-up', draw: drawLookup, own: true },
  margin: { title: 'Margin', draw: drawMargin },
  rate: { title: 'Error by tokens', draw: drawRate, own: true },
  ran: { title: 'What ran', draw: drawRan },
  program: { title: 'Computer', draw: drawProgram, own: true },
  text: { title: 'Text GPT-2', draw: drawText, own: true },
};

/** Of frames or curves, each with a kind: "proven" where all are. */
const weakest = (all) => all.find(({ kind }) => kind !== 'proven')?.kind ?? 'proven';

const about = (text) => el('p', { className: 'quiet' }, text);
const canvas = (label, low = false) => el('div', { className: low ? 'plot low' : 'plot', role: 'img', 'aria-label': label });

// ------------------------------------------------------------------------------------ error by step

async function drawPasses(node, { answer, frame }) {
  const { frames } = answer;
  if (frames.length < 2 || frames.every((f) => f.distance === null && f.gap === null)) {
    node.replaceChildren(about('This algorithm has no steps whose error could be followed: it reads its answer off in one go, or counts mistakes.'));
    return;
  }
  const box = canvas('Distance to the exact optimum, and drift from exact steps, by step');
  const last = frames.at(-1);
  node.replaceChildren(
    about('How far the coefficients are from the exact optimum, and how far emulated steps have drifted from the same steps without the machine. '
      + `${last.distance === null ? '' : `The last step is ${short(last.distance)} away; `}the drift is ${short(last.gap)}.`),
    box,
  );
  const { accent, exact, quiet } = colours();
  const line = (name, key, colour, dash) => ({
    name, x: frames.map((_, i) => i), y: frames.map((f) => positive(f[key])), mode: 'lines', line: { color: colour, dash, width: 2.5 },
    customdata: frames.map((f) => short(f[key])), hovertemplate: `step %{x}: %{customdata}<extra>${name}</extra>`,
  });
  await plot(box, [line('measured distance', 'distance', accent, 'solid'), line('drift from exact steps', 'gap', exact, 'dot')], {
    xaxis: { title: { text: 'step' } }, yaxis: { type: 'log', title: { text: 'error of a coefficient' } },
    shapes: [{ type: 'line', x0: frame, x1: frame, yref: 'paper', y0: 0, y1: 1, line: { color: quiet, width: 1 } }],
  });
}

const positive = (value) => (value === null || value <= 0 ? null : value);

// ------------------------------------------------------------------- prompt, attention and margin

function pickers({ state, set, entry }) {
  const most = Math.max(0, state.points.length - 4);
  const first = el('input', { id: 'pick-first', type: 'range', min: 0, max: most, step: 1, value: Math.min(state.first, most),
    onchange: (e) => set({ first: Number(e.target.value) }) });
  return el('div', { className: 'pickers' },
    el('div', { className: 'field' }, el('label', { for: 'pick-first' }, 'First point in the prompt'), el('output', { for: 'pick-first' }, state.first), first),
    ...(entry.descends ? [marginPicker(state, set)] : []));
}

/** The margin between blocks: another one is another network. */
function marginPicker({ margin }, set) {
  return el('div', { className: 'field' }, el('label', { for: 'pick-margin' }, 'Margin M'), el('output', { for: 'pick-margin' }, short(2 ** margin)),
    el('input', { id: 'pick-margin', type: 'range', min: 0, max: FROZEN_MARGIN, step: 0.5, value: margin, onchange: (e) => set({ margin: Number(e.target.value) }) }));
}

const looked = ({ state, frame }) => ask('inside', insideQuestion(state, frame));

async function drawPrompt(node, page) {
  const seen = await looked(page);
  if (!seen) return;
  const { roles, features, values, hidden } = seen.prompt;
  const box = canvas(`Prompt of ${roles.length} tokens by ${features.length} features`);
  node.replaceChildren(
    pickers(page),
    about(`What the network reads: ${roles.length} tokens of ${features.length} features for up to four points`
      + `${hidden ? `, and ${hidden} tokens that no query sees, left out` : ''}. Every column is coloured `
      + `relative to its largest entry. Digest of this network’s weights: ${seen.digest.slice(0, 12)}…`),
    box,
  );
  const largest = features.map((_, j) => Math.max(...values.map((row) => Math.abs(row[j]))) || 1);
  await plot(box, [{
    type: 'heatmap', z: values.map((row) => row.map((v, j) => v / largest[j])), zmin: -1, zmax: 1,
    colorscale: diverging(), showscale: false, xgap: features.length < 60 ? 1 : 0,
    text: values.map((row, i) => row.map((v, j) => `${roles[i]}<br>${features[j]} = ${short(v, 4)}`)),
    hovertemplate: '%{text}<extra></extra>',
  }], {
    height: Math.max(360, Math.min(760, 3.2 * roles.length)),
    xaxis: { title: { text: 'feature' }, tickmode: 'array', ...featureTicks(features), tickangle: -40, showgrid: false },
    yaxis: { title: { text: 'token' }, autorange: 'reversed', showgrid: false },
  });
}

/** One tick in the middle of each named block of features; key_y and key_bias, one column each, share theirs. */
function featureTicks(features) {
  const blocks = new Map();
  features.forEach((name, j) => {
    const block = name.replace(/\[\d+\]$/, '').replace(/^key_(y|bias)$/, 'key_y, key_bias');
    blocks.set(block, [...(blocks.get(block) ?? []), j]);
  });
  const middle = (places) => (places[0] + places.at(-1)) / 2;
  return { tickvals: [...blocks.values()].map(middle), ticktext: [...blocks.keys()] };
}

async function drawAttention(node, page) {
  const seen = await looked(page);
  if (!seen) return;
  const { queries, keys, weights: mass } = seen.attention;
  const box = canvas(`Attention of ${queries.length} queries over ${keys.length} keys`);
  node.replaceChildren(pickers(page), about(`Rows are queries, columns keys; a row adds up to one. ${READS}`), box);
  await plot(box, [{
    type: 'heatmap', z: mass, colorscale: rising(), colorbar: { title: { text: 'weight' }, thickness: 12 },
    text: mass.map((row, i) => row.map((v, j) => `${queries[i]}<br>reads ${keys[j]}<br>${short(v)}`)),
    hovertemplate: '%{text}<extra></extra>',
  }], {
    height: queries.length > 8 ? 560 : 320, xaxis: { title: { text: 'key' }, showgrid: false },
    yaxis: { autorange: 'reversed', showgrid: false, ...(queries.length > 8 ? { title: { text: 'query' } } : { tickvals: queries.map((_, i) => i), ticktext: queries }) },
  });
}

function marginWords({ between, margin, leaks }, digest) {
  if (between !== 'blocks' || margin === null) {
    return 'These queries read many keys on purpose, and there are no blocks to leave: the gap is between the largest '
      + 'and the second largest score.';
  }
  const most = Math.max(...leaks.filter((leak) => leak !== null));
  const spilt = most > 0 ? `up to ${short(most)} of a query’s attention leaks into other points’ blocks` : 'exactly nothing leaks';
  return margin === 2 ** FROZEN_MARGIN ? `Blocks are kept apart by the frozen margin M = ${short(margin)}, beyond every score: ${spilt}. Lower it to see a leak.`
    : `With M = ${short(margin)} written into the weights instead of the frozen ${short(2 ** FROZEN_MARGIN)}, ${spilt}. `
      + `That is another network: its digest is ${digest.slice(0, 8)}…, and the fit does not use it.`;
}

async function drawMargin(node, page) {
  const seen = await looked(page);
  if (!seen) return;
  const { queries, mass, blocks } = seen.margins;
  const where = canvas('Attention of each query on each block, as powers of ten', true);
  node.replaceChildren(pickers(page), about(marginWords(seen.margins, seen.digest)), where);
  await plot(where, [{
    type: 'heatmap', z: mass, x: blocks, y: queries, zmin: Math.min(-1, Math.floor(Math.min(...mass.flat()))), zmax: 0, colorscale: rising(),
    colorbar: { tickprefix: '10<sup>', ticksuffix: '</sup>', thickness: 12 }, hovertemplate: '%{y} on %{x}: 10<sup>%{z:.1f}</sup><extra></extra>',
  }], { title: 'Attention by block', yaxis: { autorange: 'reversed' }, height: Math.max(260, Math.min(560, 24 * queries.length)) });
}

// ----------------------------------------------------------------------------- look-up and rates

const looksUp = (entry) => entry.descends;
/** The two ways to look up; how the values of the second were found is no third. */
const named = ({ regime }) => (regime === 'hard' ? 'hard' : 'spectral');
const NO_LOSS = 'This algorithm looks no loss up. Choose one that descends, ridge or your own loss say.';

/** What a table holds, in words: a loss's own name with a prime is its derivative. */
const told = (name) => (name.endsWith("'") ? `the derivative of the ${name.slice(0, -1)} loss` : name);

async function drawLookup(node, page) {
  if (!looksUp(page.entry)) return node.replaceChildren(about(NO_LOSS));
  const found = await ask('lookup', lookupQuestion(page.state));
  if (!found) return undefined;
  const { lesson, regime } = page.state, moves = !lesson || 'movedBy' in LESSON[lesson - 1].state;
  const tables = lesson && regime === 'spectral' ? [found.spectral] : [found.spectral, found.hard]; // a lesson shows one thing at a time
  const bars = tables.map((t) => canvas(`Attention over the grid, ${named(t)}`, true));
  const lines = canvas('The function and its look-ups', true);
  const readout = el('p', { 'aria-live': 'polite' });
  const slider = el('input', { id: 'pick-z', type: 'range', min: -page.state.reach, max: page.state.reach, step: page.state.reach / 200,
    value: page.state.z, oninput: (e) => { page.keep({ z: Number(e.target.value) }); show(); } });
  const reach = el('select', { id: 'pick-reach', onchange: (e) => page.set({ reach: Number(e.target.value) }) },
    ...[1, 2, 4, 8, 16].map((r) => el('option', { value: r, selected: r === page.state.reach }, `[−${r}, ${r}]`)));
  node.replaceChildren(
    about(`A softmax over ${tables[0].tokens} grid tokens computes ${told(found.name)}.`
      + `${lesson ? '' : ' Spectral: attention over several tokens, values fitted, error exponentially small. Hard: the nearest token wins, and the error falls as one over the tokens.'}`),
    el('div', { className: 'pickers' },
      el('div', { className: 'field' }, el('label', { for: 'pick-z' }, 'z'), slider),
      el('div', { className: 'field' }, el('label', { for: 'pick-reach' }, 'Range of z'), reach),
      ...(page.state.regime === 'hard' ? [sharper(page)] : []),
      ...(moves ? movers(page, tables[0]) : [])),
    readout,
    el('div', { className: 'pair' }, ...bars),
    lines,
  );
  const { accent, second, exact } = colours();
  const paint = { hard: second };
  function show() {
    const z = page.state.z;
    readout.textContent = `At z = ${short(z)}: ${tables.map((t) => `${named(t)} returns ${short(lookUp(t, z), 6)}, ${t.error === null ? 'its error not proven here' : `${t.kind} to ${atMost(t.error)}`}`).join('; ')}.`;
    return Promise.all(tables.map((t, i) => plot(bars[i], [{
      type: 'bar', x: t.nodes, y: weights(t, z), marker: { color: paint[t.regime] ?? accent }, hovertemplate: 'token at %{x:.3g}: %{y:.3g}<extra></extra>',
    }], {
      title: `${named(t)}: attention of z`, height: 175, margin: { l: 56, r: 14, t: 34, b: 30 }, xaxis: { range: seen(t, z).map((at) => at * 1.1) }, yaxis: { range: [0, 1] },
      shapes: [{ type: 'line', x0: z, x1: z, yref: 'paper', y0: 0, y1: 1, line: { color: exact, width: 2 } }],
    })));
  }
  await show();
  return plot(lines, [
    { name: 'the function', x: found.z, y: found.exact, mode: 'lines', line: { color: exact, width: 5 }, opacity: 0.5 },
    ...tables.map((t) => ({ name: `${named(t)}, ${t.tokens} tokens`, x: found.z, y: found.z.map((z) => lookUp(t, z)), mode: 'lines',
      line: { color: paint[t.regime] ?? accent, width: 2 } })),
  ], { title: 'The function and its look-ups', height: 240 });
}

/** What of the axis to show: the range, and every token that z pays attention to. */
function seen(table, z) {
  const far = weights(table, z).reduce((most, share, k) => (share > 0.01 ? Math.max(most, Math.abs(table.nodes[k])) : most), table.high);
  return [-far, far];
}

const setter = (page, id, title, shown, given, patch) => el('div', { className: 'field' }, el('label', { for: id }, title), el('output', { for: id }, shown),
  el('input', { id, type: 'range', ...given, onchange: (e) => { page.change(patch(Number(e.target.value))); page.drawControls(); } }));

/** The sharpness of a hard look-up. */
function sharper(page) {
  const c = page.state.sharpness || HARD;
  return setter(page, 'pick-sharpness', 'Sharpness c', short(c), { min: -1.5, max: 1.5, step: 0.05, value: Math.log10(c) }, (v) => ({ sharpness: Number((10 ** v).toPrecision(3)) }));
}

/** Controls that move one value of the table by hand; the fit is then another. */
function movers(page, table) {
  const { movedToken, movedBy } = page.state, last = table.tokens - 1;
  return [
    setter(page, 'move-token', 'Token whose value is moved', String(Math.min(movedToken, last)), { min: 0, max: last, step: 1, value: Math.min(movedToken, last) }, (v) => ({ movedToken: v })),
    setter(page, 'move-by', 'Moved by hand by', movedBy ? short(movedBy) : 'nothing', { min: -1, max: 1, step: 0.05, value: movedBy }, (v) => ({ movedBy: v })),
  ];
}

async function drawRate(node, page) {
  if (!looksUp(page.entry)) return node.replaceChildren(about(NO_LOSS));
  const found = await ask('rates', lookupQuestion(page.state));
  if (!found) return undefined;
  const box = canvas('Error against grid tokens');
  node.replaceChildren(
    about(`Largest error of the look-up of ${told(found.name)} on [−${found.reach}, ${found.reach}] by number of grid tokens. `
      + 'Dots are measured on 4001 points, lines are '
      + `${weakest(found.rates)}.`),
    box);
  const { accent, second } = colours();
  const paint = { hard: second, spectral: accent };
  return plot(box, found.rates.flatMap(({ regime, tokens, measured, certified, kind }) => [
    { name: `${regime}, ${kind}`, x: tokens, y: certified.map(positive), customdata: certified.map((v) => atMost(v)), mode: 'lines', line: { color: paint[regime], dash: 'dash', width: 2 }, hovertemplate: '%{x} tokens: at most %{customdata}<extra></extra>' },
    { name: `${regime}, measured`, x: tokens, y: measured.map(positive), mode: 'markers', marker: { color: paint[regime], size: 9, symbol: regime === 'hard' ? 'diamond' : 'circle' }, hovertemplate: '%{x} tokens: %{y:.2e}<extra></extra>' },
  ]), {
    height: 400, xaxis: { type: 'log', title: { text: 'grid tokens' }, tickvals: [9, 33, 129, 513], ticktext: ['9', '33', '129', '513'] },
    yaxis: { type: 'log', title: { text: 'error' }, dtick: 2 },
  });
}

// --------------------------------------------------------------------------------------- what ran

function drawRan(node, { answer: { table, attestation, ledger } }) {
  node.replaceChildren(
    el('p', {}, table && table.error !== null ? `A look-up of this run is off by at most: ${bounded(table.error, table.kind)}, rounding included.` : 'No look-up of this run has an error that is proven here.'),
    el('pre', { className: 'scroll' }, `${attestation}\n\n${ledger}`),
    about('What the answer is off by, proven for your data, is what the library adds: result.certificate.explain() in Python.'),
  );
}
