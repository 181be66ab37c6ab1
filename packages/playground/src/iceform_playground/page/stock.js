// A stock GPT-2 whose layers are steps of least squares: a run that is stored with the page.

import { el } from './dom.js';
import { atMost, short } from './model.js';
import { colours, plot } from './plots.js';
import { json } from './runtime.js';

let loading = null;

const stored = () => {
  loading ??= json('gpt2.json');
  return loading;
};

export async function drawStock(node) {
  const run = await stored();
  const paths = el('div', { className: 'plot', role: 'img', 'aria-label': 'Coefficients in the residual stream by layer, and exact descent' });
  const off = el('div', { className: 'plot', role: 'img', 'aria-label': 'Distance from exact descent by layer, and what is certified' });
  node.replaceChildren(
    el('p', {}, `${run.architecture} with ${run.layers} layers and ${run.heads} heads, loaded by transformers with no code of ours. Its prompt holds ${run.samples} samples of ${run.dim} features; `
      + `after layer k its residual stream holds the coefficients after k steps of gradient descent. Its answer is ${short(run.off.at(-1))} away from the exact algorithm’s, ${run.kind} at most ${atMost(run.certified)}.`),
    el('div', { className: 'pair' }, paths, off),
    el('pre', { className: 'code' }, el('code', {}, run.code)),
    el('p', { className: 'quiet' }, 'The numbers are of a run of that code when this page was built.'),
  );
  const { accent, exact, second } = colours(), x = run.off.map((_, k) => k);
  await Promise.all([
    plot(paths, run.stream[0].flatMap((_, j) => [
      { name: 'exact descent', showlegend: j === 0, x, y: run.exact.map((w) => w[j]), mode: 'lines', line: { color: exact, width: 6 }, opacity: 0.35 },
      { name: 'in the residual stream', showlegend: j === 0, x, y: run.stream.map((w) => w[j]), mode: 'lines+markers', line: { color: accent, width: 2 } },
    ]), { title: 'Coefficients, layer by layer', xaxis: { title: { text: 'layer' } } }),
    plot(off, [
      { name: 'distance from exact steps', x: x.slice(1), y: run.off.slice(1).map((v) => Math.max(v, 1e-17)), mode: 'lines+markers', line: { color: accent } },
      { name: `${run.kind} at most`, x: [1, x.length - 1], y: [run.certified, run.certified], mode: 'lines', line: { color: second, dash: 'dash' } },
    ], { title: 'How far off, and what is certified', xaxis: { title: { text: 'layer' } }, yaxis: { type: 'log', dtick: 1 } }),
  ]);
}
