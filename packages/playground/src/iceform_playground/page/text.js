// A GPT-2 that runs what is typed: every token as it is written, and where its heads looked.

import { el } from './dom.js';
import { TextTrouble } from './text_language.js';
import { TextNetwork } from './text_network.js';

const REDRAW = 300; // milliseconds between two pictures of a run

let loading = null;
let running = null; // what stops the run, while there is one

/** The network, loaded when the panel is first opened. */
const network = () => {
  loading ??= TextNetwork.load();
  return loading;
};

export async function drawText(node, { state, keep }) {
  if (node.dataset.drawn === 'text' && node.querySelector('#text-program')) return; // what is typed stays
  running?.abort();
  const found = await network();
  new TextPanel(node, found, keep).show(state.text);
}

class TextPanel {
  constructor(node, found, keep) {
    Object.assign(this, { node, network: found, keep, prompt: null, run: [] });
    const { about, digest } = found, names = Object.keys(about.examples);
    this.example = el('select', { id: 'text-example', onchange: (e) => this.show(e.target.value) },
      ...names.map((name) => el('option', { value: name }, name)));
    this.program = el('textarea', { id: 'text-program', rows: 9, spellcheck: false, autocapitalize: 'off', autocomplete: 'off' });
    this.start = el('button', { type: 'button', id: 'text-run', className: 'first', onclick: () => (running ? running.abort() : this.go()) }, 'Run');
    this.trouble = el('p', { className: 'trouble', role: 'alert', hidden: true });
    this.said = el('p', { id: 'text-said', role: 'status', 'aria-live': 'polite' });
    this.read = el('div', { className: 'words read' });
    this.written = el('ol', { className: 'words written' });
    this.looked = el('div', { id: 'text-looks', className: 'looks', 'aria-live': 'off' });
    node.replaceChildren(
      el('p', {}, 'Type a program and press Run. One stock GPT-2 reads it and writes its run, one token at a time: where the result goes, the number, the line that follows.'),
      el('div', { className: 'pair text' },
        el('div', { className: 'typed' },
          el('div', { className: 'field' }, el('label', { for: 'text-example' }, 'Example'), this.example),
          el('label', { for: 'text-program' }, 'Program, then its data'), this.program,
          el('div', { className: 'go' }, this.start, this.said), this.trouble),
        el('div', { className: 'tokens', tabIndex: 0, role: 'region', 'aria-label': 'Tokens that were read and written' },
          el('h3', {}, 'What it reads'), this.read, el('h3', {}, 'What it writes: click a token'), this.written)),
      this.looked,
      el('p', { className: 'quiet' }, `${about.layers} layers of ${about.heads} heads, ${about.words.length} words, ${about.dtype}: the GPT2LMHeadModel of ice.TextComputer(), exported by torch.onnx. `
        + `SHA-256 of the weights that run here: ${digest.slice(0, 8)}…${digest.slice(-4)}, ${digest === about.digest ? 'as in Python' : 'NOT as in Python'}. `
        + 'Every token is proven to be the interpreter’s for every program that fits. This page checks words, lines, labels and names before it runs; '
        + 'in Python computer.check(text) also runs the program by the interpreter, and so refuses a cell that is read before it is written, or an index out of range.'),
    );
    node.dataset.digest = digest;
  }

  /** Put an example into the field, and show how it is read. */
  show(name) {
    const { examples } = this.network.about, chosen = name in examples ? name : Object.keys(examples)[1];
    this.example.value = chosen;
    this.keep({ text: chosen });
    this.program.value = examples[chosen];
    running?.abort();
    this.ready();
    this.say('Press Run.');
  }

  say(text) { this.said.textContent = text; }

  /** Read what is typed: tokens, or what is wrong with it. */
  ready() {
    this.run = [];
    this.trouble.hidden = true;
    this.program.removeAttribute('aria-invalid');
    this.written.replaceChildren();
    this.looked.replaceChildren();
    try {
      this.prompt = this.network.language.prompt(this.program.value);
    } catch (error) {
      if (!(error instanceof TextTrouble)) throw error;
      this.refuse(error);
      return false;
    }
    this.nodes = this.prompt.words.map((word) => el('span', { className: 'word' }, word === '\n' ? '↵' : word));
    const last = Math.max(...this.prompt.lines);
    const at = (line) => this.nodes.filter((_, k) => this.prompt.lines[k] === line);
    const rows = Array.from({ length: last }, (_, k) => at(k + 1)).filter((row) => row.length);
    this.read.replaceChildren(...[[this.nodes[0]], ...rows, [this.nodes.at(-1)]].map((row) => el('div', { className: 'row' }, ...row)));
    return true;
  }

  refuse(error) {
    this.prompt = null;
    this.read.replaceChildren();
    Object.assign(this.trouble, { hidden: false, textContent: error.message });
    this.program.setAttribute('aria-invalid', 'true');
    const lines = this.program.value.split('\n'), before = lines.slice(0, error.line - 1).join('\n').length + (error.line > 1 ? 1 : 0);
    const within = Math.max(0, (lines[error.line - 1] ?? '').indexOf(error.word));
    this.program.focus();
    this.program.setSelectionRange(before + within, before + within + error.word.length);
    this.say('');
  }

  async go() {
    if (!this.ready()) return;
    const mine = running = new AbortController(), began = performance.now();
    this.start.textContent = 'Stop';
    Object.assign(this, { chosen: null, drawn: 0 });
    try {
      for await (const { word, looks } of this.network.write(this.prompt.ids, mine.signal)) {
        if (!this.program.isConnected || mine.signal.aborted) return;
        this.add(word, looks);
      }
      if (this.chosen === null) this.look(this.run.length - 1);
      const seconds = (performance.now() - began) / 1000, end = this.run.at(-1)?.word === '[end]';
      this.said.dataset.seconds = seconds;
      this.say(`${this.run.length} tokens in ${seconds.toFixed(1)} s, ${end ? `the end: ${this.run.at(-3).word} ${this.run.at(-2).word}` : 'no position is left: the run is cut here'}.`);
    } finally {
      if (running === mine) running = null;
      if (mine.signal.aborted) this.say(`Stopped after ${this.run.length} tokens.`);
      this.start.textContent = 'Run';
    }
  }

  /** One more token; three of them are an instruction that was executed. */
  add(word, looks) {
    const k = this.run.length, button = el('button', { type: 'button', className: 'word', onclick: () => { this.chosen = k; this.look(k); } }, word);
    this.run.push({ word, looks, button });
    if (k % 3 === 0) this.written.append(el('li', { className: 'row' }));
    this.written.lastChild.append(button);
    if (this.chosen === null && performance.now() - this.drawn > REDRAW) this.look(k);
  }

  nodeAt(at) { return this.nodes[at] ?? this.run[at - this.nodes.length].button; }

  /** Where the heads looked when a token was written. */
  look(k) {
    const { looks, word } = this.run[k], before = this.nodes.length + k - 1;
    this.node.querySelectorAll('.looked, .chosen').forEach((one) => one.classList.remove('looked', 'chosen'));
    this.node.querySelector('.word[aria-pressed=true]')?.setAttribute('aria-pressed', 'false');
    this.run[k].button.setAttribute('aria-pressed', 'true');
    if (running) {
      this.written.parentElement.scrollTop = this.written.parentElement.scrollHeight;
      this.say(`${this.run.length} tokens`);
    }
    this.drawn = performance.now();
    const groups = new Map();
    let resting = 0;
    for (const { layer, role, at, share } of looks) {
      if (at === 0) { resting += 1; continue; }
      const name = role.replace(/, (part|above) .*$|(?<=segment) \d+$/, ''), key = `${layer} ${name} ${at}`;
      const group = groups.get(key) ?? { layer, name, at, share, heads: 0 };
      groups.set(key, Object.assign(group, { heads: group.heads + 1, share: Math.min(group.share, share) }));
    }
    const cell = (text, className = '') => el('td', { className }, text);
    const rows = [...groups.values()].map(({ layer, name, at, share, heads }) => {
      this.nodeAt(at).classList.add('looked');
      return el('tr', {}, cell(String(layer), 'number'), cell(heads > 1 ? `${name} (${heads} heads)` : name), el('td', {}, el('code', {}, this.wordAt(at)), ` ${this.where(at, before)}`), cell(`${Math.round(100 * share)} %`, 'number'));
    });
    const head = (text, className = '') => el('th', { scope: 'col', className }, text);
    this.looked.replaceChildren(
      el('h3', {}, 'Where its heads looked to write ', el('code', {}, word), `, token ${k + 1}`),
      el('p', { className: 'quiet' }, 'The network stood on ', el('code', {}, this.wordAt(before)), `, the token before. ${resting} heads had nothing to do and rested on the first token.`),
      el('div', { className: 'scroll', tabIndex: 0, role: 'region', 'aria-label': 'Heads and what they looked at' }, el('table', {},
        el('thead', {}, el('tr', {}, head('layer', 'number'), head('what the head is for'), head('looked at'), head('attention', 'number'))), el('tbody', {}, ...rows))),
    );
  }

  wordAt(at) { return (this.prompt.words[at] ?? this.run[at - this.nodes.length].word).replace('\n', '↵'); }

  where(at, before) {
    if (at === before) return 'itself';
    if (at >= this.nodes.length) return `written as token ${at - this.nodes.length + 1}`;
    return this.prompt.lines[at] ? `in line ${this.prompt.lines[at]}` : 'where the run begins';
  }
}
