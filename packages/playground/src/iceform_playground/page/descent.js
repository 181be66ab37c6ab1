// A GPT-2 whose layers are steps of descent, live: move a point, and twelve lines follow; take a head
// out, and what it does is beside what its circuit predicts.

import { Circuit } from './circuit.js';
import { byId, el, svg } from './dom.js';
import { atMost, short } from './model.js';
import { digestOf, json, runtime, unpacked } from './runtime.js';

const SIZE = 600, NEAR = 34, STEP = 0.02; // of the board; of a finger; of an arrow key

let loading = null;

/** The network, loaded when it is first looked at. */
const network = () => {
  loading ??= DescentNetwork.load();
  return loading;
};

/** The GPT-2 as an ONNX file: points and gates in, coefficients by layer out. */
export class DescentNetwork {
  static async load() {
    const [ort, about, graph, weights] = await Promise.all([runtime(), json('gpt2.json'), unpacked('gpt2.onnx.gz'), unpacked('gpt2.weights.gz')]);
    const session = await ort.InferenceSession.create(graph, { executionProviders: ['wasm'], logSeverityLevel: 3, externalData: [{ path: 'gpt2.weights', data: weights }] });
    return Object.assign(new DescentNetwork(), { ort, about, session, circuit: new Circuit(about), digest: await digestOf(about.digested, weights) });
  }

  /** Lines [intercept, slope] before the first layer and after each; without the head that is gone. */
  async lines(points, gone) {
    const { ort, session, about } = this, gates = new Float64Array(about.layers * about.heads).fill(1);
    if (gone) gates[gone.layer * about.heads + gone.head] = 0;
    const out = await session.run({
      points: new ort.Tensor('float64', Float64Array.from(points.flat()), [points.length, 2]),
      gates: new ort.Tensor('float64', gates, [about.layers, about.heads]),
    });
    const found = out.lines.data;
    return Array.from({ length: about.layers + 1 }, (_, k) => [found[2 * k], found[2 * k + 1]]);
  }
}

export async function drawDescent(node) {
  if (node.dataset.drawn === 'descent' && node.querySelector('#descent-board')) return; // it redraws itself
  const found = await network();
  await new DescentPanel(node, found).start();
}

const place = ([x, y]) => [(SIZE / 2) * (1 + x), (SIZE / 2) * (1 - y)];
/** A role with fewer digits of its number. */
const named = (role) => role.replace(/[\d.]{5,}/, (digits) => Number(digits).toPrecision(3));
const held = (value) => Math.max(-1, Math.min(1, value));

class DescentPanel {
  constructor(node, found) {
    const { about, digest } = found;
    Object.assign(this, { node, network: found, points: about.points.map((point) => [...point]), gone: null, moved: false, at: 0, asked: 0, busy: false });
    this.lines = Array.from({ length: about.layers + 1 }, (_, k) => svg('path', { class: k === about.layers ? 'fit' : 'fit step', style: `stroke-opacity: ${(0.12 + (0.88 * k) / about.layers).toFixed(2)}`, 'data-step': k }));
    this.goal = svg('path', { class: 'fit exact' });
    this.dots = this.points.map(() => svg('circle', { r: 9, class: 'point g0' }));
    this.board = svg('svg', { id: 'descent-board', viewBox: `0 0 ${SIZE} ${SIZE}`, tabindex: 0, role: 'application', 'aria-label': 'Points and the line after each layer', 'aria-describedby': 'descent-help' },
      svg('path', { class: 'axis', d: `M0 ${SIZE / 2}H${SIZE}M${SIZE / 2} 0V${SIZE}` }), ...this.lines, this.goal, ...this.dots);
    this.said = el('p', { id: 'descent-said', role: 'status', 'aria-live': 'polite' });
    this.damage = el('div', { id: 'descent-damage' });
    this.cells = Array.from({ length: about.heads }, (_, head) => Array.from({ length: about.layers }, (_, layer) => el('button', {
      type: 'button', className: 'head', title: `layer ${layer + 1}: ${named(about.roles[head])}`, 'aria-label': `Take out of layer ${layer + 1}: ${named(about.roles[head])}`, 'aria-pressed': 'false', onclick: () => this.take({ layer, head }),
    })));
    node.replaceChildren(
      el('div', { className: 'pair live' },
        el('div', { className: 'board small' }, this.board, el('p', { id: 'descent-help', className: 'hint' }, 'Drag a point. With the keyboard: Space goes to the next point, arrows move it.')),
        el('div', { className: 'heads' },
          el('h3', {}, 'Its heads: click one to take it out'),
          el('div', { className: 'scroll', tabIndex: 0, role: 'region', 'aria-label': 'Heads by layer' }, el('table', { className: 'grid' },
            el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'layer'), ...Array.from({ length: about.layers }, (_, k) => el('th', { scope: 'col' }, String(k + 1))))),
            el('tbody', {}, ...this.cells.map((row, head) => el('tr', {}, el('th', { scope: 'row' }, named(about.roles[head])), ...row.map((cell) => el('td', {}, cell))))))),
          el('div', { className: 'go' },
            el('button', { type: 'button', id: 'descent-whole', onclick: () => this.take(null) }, 'All heads'),
            el('button', { type: 'button', id: 'descent-reset', onclick: () => this.reset() }, 'Points as they were')),
          this.said, this.damage)),
      el('details', {}, el('summary', {}, 'The same in Python'), el('pre', { className: 'code', tabIndex: 0 }, el('code', {}, about.code))),
      el('p', { className: 'quiet' }, `${about.architecture} with ${about.layers} layers of ${about.heads} heads in float64, as transformers loads it, exported by torch.onnx and run here at every move. `
        + `SHA-256 of its weights: ${digest.slice(0, 8)}…${digest.slice(-4)}, ${digest === about.digest ? 'as in Python' : 'NOT as in Python'}. Each layer is one step of ridge regression with momentum: `
        + `pairs of heads read the residuals, three gates shrink and carry. For all points of this board its last line is ${about.kind} to be within ${atMost(about.certified)} of the exact algorithm’s.`),
    );
    node.dataset.digest = digest;
    this.listen();
  }

  listen() {
    const { board } = this;
    let grip = -1;
    const where = (event) => {
      const box = board.getBoundingClientRect();
      return [held((2 * (event.clientX - box.left)) / box.width - 1), held(1 - (2 * (event.clientY - box.top)) / box.height)];
    };
    board.addEventListener('pointerdown', (event) => {
      const at = where(event), far = this.points.map((point) => Math.hypot(point[0] - at[0], point[1] - at[1]));
      const nearest = far.indexOf(Math.min(...far));
      if (far[nearest] * SIZE > 2 * NEAR) return;
      [grip, this.at] = [nearest, nearest];
      board.setPointerCapture(event.pointerId);
      this.move(nearest, at);
    });
    board.addEventListener('pointermove', (event) => { if (grip >= 0) this.move(grip, where(event)); });
    for (const end of ['pointerup', 'pointercancel']) board.addEventListener(end, () => { grip = -1; });
    board.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] }[event.key];
      if (event.key === ' ') this.at = (this.at + 1) % this.points.length;
      else if (step) this.move(this.at, this.points[this.at].map((value, k) => held(value + step[k])));
      else return;
      event.preventDefault();
      this.mark();
    });
  }

  async start() {
    this.mark();
    await this.ask();
  }

  move(k, point) {
    [this.points[k], this.moved] = [point, true];
    this.mark();
    this.ask();
  }

  take(gone) {
    const same = gone && this.gone && gone.layer === this.gone.layer && gone.head === this.gone.head;
    this.gone = same ? null : gone;
    this.ask();
  }

  reset() {
    Object.assign(this, { points: this.network.about.points.map((point) => [...point]), moved: false });
    this.mark();
    this.ask();
  }

  mark() {
    this.dots.forEach((dot, k) => {
      const [cx, cy] = place(this.points[k]);
      for (const [name, value] of Object.entries({ cx, cy, class: `point g0${k === this.at ? ' at' : ''}` })) dot.setAttribute(name, value);
    });
  }

  /** Run the network on what is there now; moves while it runs are answered by one more run. */
  async ask() {
    this.asked += 1;
    if (this.busy) return;
    this.busy = true;
    try {
      for (let done = 0; done < this.asked && this.board.isConnected;) {
        done = this.asked;
        const { points, gone } = this, began = performance.now();
        const whole = await this.network.lines(points, null), lines = gone ? await this.network.lines(points, gone) : whole;
        this.draw(points, gone, whole, lines);
        this.board.dataset.milliseconds = performance.now() - began;
        this.board.dataset.runs = Number(this.board.dataset.runs ?? 0) + 1;
      }
    } finally {
      this.busy = false;
    }
  }

  draw(points, gone, whole, lines) {
    const { circuit, about } = this.network;
    const path = ([a, b]) => `M${place([-1, a - b])}L${place([1, a + b])}`;
    this.lines.forEach((line, k) => line.setAttribute('d', path(lines[k])));
    const exact = circuit.exact(points);
    this.goal.setAttribute('d', path(exact.at(-1)));
    const shares = circuit.shares(points), most = Math.max(...shares.flat());
    this.cells.forEach((row, head) => row.forEach((cell, layer) => {
      const size = shares[layer][head] / most, shade = size > 0 ? Math.max(0, 1 + Math.log10(size) / 8) : 0;
      cell.style.setProperty('--size', shade.toFixed(2));
      cell.setAttribute('aria-pressed', String(gone?.layer === layer && gone?.head === head));
    }));
    const off = Math.max(...whole.at(-1).map((value, k) => Math.abs(value - exact.at(-1)[k])));
    this.said.textContent = gone ? `Layer ${gone.layer + 1} runs without “${named(about.roles[gone.head])}”.`
      : `Twelve layers, twelve steps: the last line is ${short(off)} from exact descent, ${about.kind} ≤\u00a0${atMost(about.certified)}.`;
    this.compare(points, gone, whole.at(-1), lines.at(-1));
  }

  /** What the head did, as its circuit predicts it and as the network shows it. */
  compare(points, gone, whole, less) {
    if (!gone) return this.damage.replaceChildren();
    const { circuit, about } = this.network;
    const predicted = circuit.walk(points, gone).at(-1).w, intact = circuit.walk(points, null).at(-1).w;
    const apart = Math.max(...less.map((value, k) => Math.abs(value - predicted[k]))), within = circuit.rounding(points, gone) + circuit.rounding(points, null);
    const row = (name, k) => el('tr', {}, el('th', { scope: 'row' }, name), ...[predicted[k] - intact[k], less[k] - whole[k]].map((value) => el('td', { className: 'number' }, short(value, 10))));
    const head = (text, className = '') => el('th', { scope: 'col', className }, text);
    this.damage.replaceChildren(
      el('table', {}, el('caption', {}, 'What it changes in the last line'),
        el('thead', {}, el('tr', {}, head('of the'), head('predicted', 'number'), head('the network', 'number'))),
        el('tbody', {}, row('intercept', 0), row('slope', 1))),
      el('p', {}, `Predicted and seen are ${short(apart)} apart; by rounding they may be: estimated ≤ ${atMost(within)}`
        + `${this.moved ? '' : `, and for these points, by ball arithmetic in Python, proven ≤ ${atMost(about.within)}`}.`),
    );
    Object.assign(this.damage.dataset, { apart, within });
    return undefined;
  }
}
