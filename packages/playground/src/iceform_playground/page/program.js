// The frozen computer: a program of the library, cycle by cycle.

import { proof } from './certificate.js';
import { described, el } from './dom.js';
import { programRun } from './engine.js';
import { bounded, short } from './model.js';
import { colours, plot, rising } from './plots.js';

const PACE = 350; // milliseconds of a cycle that is played
const ALL = 'all that are asked';
const LABELS = 16; // ticks that have room on an axis
const LAYERS = {
  fetch: 'every unit finds the instruction at its program counter',
  read: 'units take their operands out of memory',
  compute: 'units look a + b and a − b up in the instruction’s table',
  write: 'memory takes the result where it is the destination',
};
const SIDES = { '1': '+', '-1': '−', '0': '' };

const digests = new Map(); // program -> digest, of this visit
let timer = 0;

const about = (text) => el('p', { className: 'quiet' }, text);
const vector = (values) => (values.length === 1 ? short(values[0]) : `[${values.map((v) => short(v)).join(', ')}]`);
const region = (label, className, ...children) => el('div', { className, tabIndex: 0, role: 'region', 'aria-label': label }, ...children);

export async function drawProgram(node, page) {
  stop();
  const focused = document.activeElement?.id, run = await programRun(page.state.program);
  digests.set(run.answer.name, run.answer.digest);
  const view = new View(node, page, run);
  refocus(focused);
  await view.show(Math.max(0, Math.min(page.state.cycle, view.count)));
}

function refocus(id) {
  if (id && document.activeElement?.id !== id) document.getElementById(id)?.focus({ preventScroll: true });
}

function stop() {
  clearInterval(timer);
  timer = 0;
}

// ---------------------------------------------------------------------------------- what is chosen

function picker({ state, set, offer }) {
  const program = el('select', { id: 'pick-program', onchange: (e) => set({ program: e.target.value, cycle: 1 }) },
    ...offer.programs.map(({ name, title }) => el('option', { value: name, selected: name === state.program }, title)));
  return el('div', { className: 'pickers' }, el('div', { className: 'field' }, el('label', { for: 'pick-program' }, 'Program'), program));
}

// -------------------------------------------------------------------------------------------- view

class View {
  constructor(node, page, { answer, cycles }) {
    Object.assign(this, { node, page, answer, seen: cycles, at: 0 });
    this.count = answer.cycles.length;
    this.now = el('p', { id: 'now', 'aria-live': 'polite' });
    this.player();
    this.source = answer.source.map((line) => el('span', { className: 'line' }, `${line}\n`));
    this.listing = this.assembly();
    this.memory = { lane0: el('tbody'), samples: el('tbody') };
    this.address = el('div', { className: 'plot strip', role: 'img', 'aria-label': 'Address of the instruction by cycle' });
    this.cards = Object.keys(LAYERS).map((name, i) => this.card(name, i));
    node.replaceChildren(
      picker(page),
      about(`${answer.says} One frozen block of ${answer.layers} attention layers (${answer.heads} heads) reads the program and its data as `
        + `${answer.tokens} tokens of ${answer.features} features, and is applied ${this.count} times. Nothing but the tokens goes from one cycle to the next. `
        + 'What follows is a trace of that literal run.'),
      this.facts(),
      this.controls,
      this.now,
      el('div', { className: 'pair' },
        el('div', {}, el('h3', {}, 'As it was written'), region('Source', 'code', el('pre', {}, ...this.source))),
        el('div', {}, el('h3', {}, 'As it is executed: dst ← F(a + b) − G(a − b)'), this.listing.box)),
      this.address,
      el('div', { className: 'pair lanes' }, this.table('lane0'), this.table('samples')),
      el('div', { className: 'pair' }, ...this.cards.map(({ box }) => box)),
      el('details', {}, el('summary', {}, `What is ${answer.certificate.kind} of the answer, and what ran where`), ...proof(answer)),
      about('Runs are stored when the page is built. Write a program of your own with @ice.algorithm, and look at it with computer.trace(program, X, y).'),
    );
  }

  player() {
    this.slider = el('input', { id: 'cycle', type: 'range', min: 0, max: this.count, step: 1, oninput: (e) => { this.pause(); this.show(Number(e.target.value)); } });
    this.name = el('output', { for: 'cycle' });
    this.playing = el('button', { type: 'button', id: 'program-play', onclick: () => this.play() }, 'Play');
    const step = (by) => () => { this.pause(); this.show(this.at + by); };
    this.controls = el('div', { className: 'player cycles' },
      el('div', { className: 'choice', role: 'group', 'aria-label': 'Cycles' },
        el('button', { type: 'button', id: 'program-back', onclick: step(-1) }, 'Back'),
        this.playing,
        el('button', { type: 'button', id: 'program-step', onclick: step(1) }, 'Step')),
      el('label', { for: 'cycle' }, 'Cycle ', this.name),
      this.slider);
  }

  facts() {
    const { digest, certificate, off, outputs, parameters } = this.answer;
    const same = new Set(digests.values()).size === 1;
    const list = el('dl', { className: 'facts', id: 'program-facts' });
    described(list, [
      ['frozen block', `${digest.slice(0, 8)}…${digest.slice(-4)}, ${!same ? 'CHANGED' : digests.size === 1 ? 'literal weights' : `the same for ${digests.size} programs`}`],
      ...Object.entries(parameters).map(([name, value]) => [name, short(value)]),
      ...Object.entries(outputs).map(([name, value]) => [name === 'value' ? 'answer' : `answer, ${name}`, vector(value)]),
      ['error of an answer', bounded(certificate.error, certificate.kind)],
      ['off from float64', short(off)],
    ]);
    list.querySelector('dd').dataset.digest = digest;
    return list;
  }

  assembly() {
    const { answer } = this;
    const text = (line) => answer.source[line - answer.first_line]?.trim() ?? '';
    let shown = 0;
    const rows = [], body = el('tbody');
    for (const one of answer.instructions) {
      if (one.line && one.line !== shown) {
        shown = one.line;
        body.append(el('tr', { className: 'comment' }, el('td', { colSpan: 3 }, `# ${text(one.line)}`)));
      }
      const row = el('tr', {}, el('th', { scope: 'row', className: 'number' }, `${one.address}${SIDES[one.when]}`),
        el('td', {}, el('code', {}, one.text)), el('td', {}, one.note));
      body.append(row);
      rows.push(row);
    }
    const box = region('Instructions', 'code', el('table', {}, body));
    return { box, rows };
  }

  table(lanes) {
    const mine = this.answer.variables.filter((v) => v.lanes === lanes);
    const widest = Math.max(1, ...mine.map((v) => (lanes === 'lane0' ? v.start[0].length : v.start.length)));
    const across = Array.from({ length: widest }, (_, i) => el('th', { scope: 'col', className: 'number' }, lanes === 'lane0' ? `[${i}]` : String(i + 1)));
    const caption = lanes === 'lane0' ? 'Memory, lane 0: one for all' : 'Memory by lane: one a sample';
    return region(caption, 'scroll', el('table', { className: 'memory' }, el('caption', {}, caption),
      el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, lanes === 'lane0' ? 'name' : 'lane'), ...across)), this.memory[lanes]));
  }

  card(name, index) {
    const words = el('p', { className: 'quiet' });
    const id = `head-${name}`;
    const heads = el('select', { id, onchange: (e) => { this.page.keep({ [`${name}Head`]: e.target.value }); this.drawCard(index); } });
    const picture = el('div', { className: 'plot low', role: 'img', 'aria-label': `Attention of the layer ${name}` });
    const box = el('div', { className: 'layer', 'data-layer': name }, el('h3', {}, `Layer ${index + 1}, ${name}: ${LAYERS[name]}`),
      el('div', { className: 'field' }, el('label', { for: id }, 'Head'), heads), words, picture);
    return { box, heads, words, picture, name, layer: null };
  }

  // ------------------------------------------------------------------------------------- a cycle

  async show(position) {
    this.at = Math.max(0, Math.min(position, this.count));
    this.page.keep({ cycle: this.at });
    this.slider.value = this.at;
    this.name.textContent = `${this.at} of ${this.count}`;
    this.slider.setAttribute('aria-valuetext', `${this.at} of ${this.count}`);
    const step = this.at ? this.answer.cycles[this.at - 1] : null;
    this.mark(step);
    this.remember(step);
    this.node.dataset.cycle = this.at;
    await Promise.all([this.drawAddress(), this.look()]);
  }

  mark(step) {
    const one = step && this.answer.instructions[step.instruction];
    this.now.textContent = one ? this.sentence(step, one)
      : 'The prompt, before the first cycle: the program, its tables and the data are tokens; the program counter is 0.';
    this.listing.rows.forEach((row, i) => {
      if (i === step?.instruction) row.setAttribute('aria-current', 'step');
      else row.removeAttribute('aria-current');
    });
    this.source.forEach((line, i) => line.classList.toggle('current', one !== null && i === one.line - this.answer.first_line));
    centre(this.listing.box, this.listing.rows[step?.instruction ?? 0]);
  }

  sentence(step, { address, when, text, f, g, note, halts }) {
    const before = this.memoryAt(this.at - 1);
    const shown = (values) => (values.length > 1 ? `${values.length} lanes` : vector(values[0]));
    const wrote = Object.entries(step.changed).map(([name, values]) => (values.length > 1
      ? `${name} changes in ${values.length} lanes` : `${name}: ${shown(before[name])} becomes ${shown(values)}`));
    const what = `${text.replace(/\s+/g, ' ')} (${note}), with F(z) = ${f} and G(z) = ${g}`;
    return `Address ${address}${SIDES[when]}: ${what}. ${wrote.join('; ') || (halts ? 'It halts' : 'Memory stays as it is')}.`;
  }

  memoryAt(position) {
    const held = Object.fromEntries(this.answer.variables.map((v) => [v.name, v.start]));
    this.answer.cycles.slice(0, position).forEach(({ changed }) => Object.assign(held, changed));
    return held;
  }

  remember(step) {
    const held = this.memoryAt(this.at);
    const cell = (value) => el('td', { className: 'number' }, short(value));
    const rows = { lane0: [], samples: [] };
    for (const { name, lanes } of this.answer.variables) {
      const values = held[name], className = step && name in step.changed ? 'changed' : '';
      if (lanes === 'lane0') {
        rows.lane0.push(el('tr', { className, 'data-variable': name }, el('th', { scope: 'row' }, name), ...values[0].map(cell)));
      } else {
        values[0].forEach((_, j) => rows.samples.push(el('tr', { className, 'data-variable': name },
          el('th', { scope: 'row' }, values[0].length > 1 ? `${name}[${j}]` : name), ...values.map((lane) => cell(lane[j])))));
      }
    }
    for (const [lanes, found] of Object.entries(rows)) this.memory[lanes].replaceChildren(...found);
  }

  drawAddress() {
    const { accent, exact } = colours();
    const { cycles, instructions } = this.answer;
    return plot(this.address, [{
      x: cycles.map((_, i) => i + 1), y: cycles.map(({ instruction }) => instructions[instruction].address), mode: 'markers',
      marker: { color: accent, size: 5, symbol: 'square' }, hovertemplate: 'cycle %{x}: address %{y}<extra></extra>',
    }], {
      height: 190, xaxis: { title: { text: 'cycle' }, range: [-0.5, this.count + 0.5] },
      yaxis: { title: { text: 'address' }, autorange: 'reversed' },
      shapes: [{ type: 'line', x0: this.at, x1: this.at, yref: 'paper', y0: 0, y1: 1, line: { color: exact, width: 2 } }],
    });
  }

  // ----------------------------------------------------------------------------------- attention

  /** The attention of the cycle that is shown. */
  async look() {
    const shown = this.at, layers = shown ? this.seen[shown - 1].layers : [];
    this.cards.forEach((card) => { card.layer = layers.find(({ layer }) => layer === card.name) ?? null; });
    await Promise.all(this.cards.map((_, i) => this.drawCard(i)));
    this.node.dataset.attention = shown;
  }

  async drawCard(index) {
    const { heads, words, picture, name, layer } = this.cards[index];
    const offered = layer ? choices(layer.heads) : [];
    const chosen = offered.find((head) => head.name === this.page.state[`${name}Head`]) ?? offered[name === 'read' ? 0 : offered.length > 1 ? 1 : 0];
    heads.replaceChildren(...offered.map((head) => el('option', { value: head.name, selected: head === chosen }, head.name)));
    heads.disabled = !chosen;
    words.textContent = layer ? reads(layer, chosen) : 'Nothing has run yet.';
    picture.hidden = !chosen;
    if (!chosen) return undefined;
    const { queries, keys, weights } = chosen;
    const ticks = (names) => (names.length <= LABELS ? { tickvals: names.map((_, i) => i), ticktext: names } : { showticklabels: false, title: { text: `${names.length} tokens` } });
    return plot(picture, [{
      type: 'heatmap', z: weights, zmin: 0, zmax: Math.max(...weights.flat()), colorscale: rising(), colorbar: { title: { text: 'weight' }, thickness: 10 }, xgap: 1, ygap: 1,
      text: weights.map((row, i) => row.map((v, j) => `${queries[i]}<br>reads ${keys[j]}<br>${short(v)}`)), hovertemplate: '%{text}<extra></extra>',
    }], {
      height: Math.max(130, Math.min(340, 100 + 17 * queries.length)), xaxis: { showgrid: false, ...ticks(keys) }, yaxis: { autorange: 'reversed', showgrid: false, ...ticks(queries) },
    });
  }

  // ------------------------------------------------------------------------------------- playing

  play() {
    if (timer) { this.pause(); return; }
    if (this.at >= this.count) this.show(0);
    this.playing.textContent = 'Pause';
    this.now.setAttribute('aria-live', 'off');
    timer = setInterval(() => {
      if (!this.listing.box.isConnected) { stop(); return; }
      if (this.at >= this.count) this.pause();
      else this.show(this.at + 1);
    }, PACE);
  }

  pause() {
    stop();
    this.playing.textContent = 'Play';
    this.now.setAttribute('aria-live', 'polite');
  }
}

/** Scroll a box, and nothing else, until a row is in its middle. */
function centre(box, row) {
  box.scrollTop = row.offsetTop - (box.clientHeight - row.offsetHeight) / 2;
}

/** The heads that are asked; where there are several, first all of them in one picture. */
function choices(heads) {
  if (heads.length < 2) return heads;
  const keys = [...new Set(heads.flatMap((head) => head.keys))];
  const row = (head, weights) => keys.map((key) => weights[head.keys.indexOf(key)] ?? 0);
  const all = {
    name: ALL, keys, queries: heads.flatMap((head) => head.queries.map((query) => `${head.name}: ${query}`)),
    weights: heads.flatMap((head) => head.weights.map((weights) => row(head, weights))),
  };
  return [all, ...heads];
}

/** A layer's chosen head in words. */
function reads({ copies, idle, hidden, heads }, head) {
  const rest = `The self head copies all ${copies} tokens.`
    + `${idle ? ` ${idle} head${idle === 1 ? ' is' : 's are'} asked by nobody now.` : ''}`
    + `${hidden ? ` ${hidden} heads look up components that this program does not use.` : ''}`;
  if (!head) return `Nobody asks anything here. ${rest}`;
  const { queries, keys, weights } = head;
  const sharp = weights.every((row) => Math.max(...row) === 1);
  const who = queries.length === 1 ? queries[0] : `${queries.length} tokens`;
  const verb = queries.length === 1 ? 'reads' : 'read';
  const whom = keys.length === 1 ? keys[0] : sharp ? 'one token each' : `${keys.length} tokens, softly`;
  const what = head.name === ALL ? `${heads.length} heads are asked.` : `${heads.length > 1 ? `${heads.length} heads are asked; in this one ` : ''}${who} ${verb} ${whom}.`;
  return `${what} ${rest}`;
}
