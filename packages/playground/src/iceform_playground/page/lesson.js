// The guided lesson: eleven steps, each a state of the page with words to it, each with a link.
// A step that is about what is inside has its panel above the board.

import { byId, el } from './dom.js';

const MOVED = 1; // by which step 8 moves a value of the table

export const LESSON = [
  { title: 'A GPT-2 that descends', inside: true, state: { panel: 'descent' },
    says: () => ['This is a live GPT-2. Nobody trained it: each of its twelve layers is one step of gradient descent on the points. Drag a point, and the line after every layer moves. '
      + 'Every head is known: take one out, and what happens is beside what its circuit predicts. The next steps say how that is possible.'] },
  { title: 'A look-up', inside: true, state: { algorithm: 'logistic', preset: 'blobs', panel: 'lookup', tokens: 33, z: 0.3 },
    says: () => ['A softmax over a grid of tokens is a look-up table. The bars are the attention that a number z pays to the tokens of a grid; '
      + 'their values, averaged with it, give the logistic curve at z. Move z, and the bars follow.'] },
  { title: 'Temperature', inside: true, state: { algorithm: 'logistic', preset: 'blobs', panel: 'lookup', tokens: 33, regime: 'hard', sharpness: 12, z: 0.3 },
    says: () => ['How sharply z looks is the sharpness c, an inverse temperature. Cold (hard, as in the paper), and only the nearest token counts: a staircase. '
      + 'At a moderate temperature (spectral), with values chosen for it, the same tokens give digit after digit. Lower it: the stairs melt, and then the curve bends.'] },
  { title: 'Tokens buy digits', inside: true, state: { algorithm: 'logistic', preset: 'blobs', panel: 'rate', tokens: 33 },
    says: () => ['The error against the number of grid tokens, measured and proven. The paper’s regime falls as one over the tokens, the spectral one exponentially: '
      + 'that is what makes look-ups precise enough to be put on top of each other.'] },
  { title: 'One gradient step', inside: true, state: { algorithm: 'ridge', method: 'gradient', passes: 1, panel: 'prompt', frame: 1 },
    says: () => ['The loss’s derivative is in the prompt as a table, and so are the points: every point is a block of tokens whose query looks f′(w·x − y) up and returns it times x. '
      + 'The readout adds the rows. That sum is a gradient, and this is one step of it. Here is the literal prompt of four points.'] },
  { title: 'Many steps', state: { algorithm: 'ridge', method: 'momentum', passes: 60, panel: 'passes' },
    says: () => ['Feed the coefficients back in and it is gradient descent. Press Play. The dotted line under the curve takes the same steps without a transformer: '
      + 'the drift between the two is rounding.'] },
  { title: 'Swap the prompt', state: { algorithm: 'quantile', preset: 'fan', degree: 1, values: { quantile: 0.9 }, panel: 'passes', method: 'momentum', tokens: 129 },
    says: () => ['Another table in the prompt is another algorithm: this is the line below which nine tenths of the points lie. Choose others from the list. '
      + 'The digest at the top is a SHA-256 of the weights that ran, computed after every run, and it never changes.'] },
  { title: 'Move one value of the table', state: { algorithm: 'absolute', preset: 'wave', degree: 3, panel: 'lookup', tokens: 33, movedToken: 16, movedBy: MOVED },
    act: ({ movedBy }) => (movedBy ? ['Put it back', { movedBy: 0 }] : ['Move it again', { movedBy: MOVED }]),
    says: () => ['The mechanism is known, so interventions can be predicted. One value of the table, the one that residuals around 0 read, was moved up by 1: '
      + 'the solid curve, by the machine, leaves the dotted one, the same steps without it. Put the value back, and the two agree again. The sliders of the panel below move other values.'] },
  { title: 'Break the margin', inside: true, state: { algorithm: 'ridge', panel: 'margin', margin: 1 },
    says: () => ['Points share a prompt, and a margin M in the weights keeps a query in its own block. Here it was lowered from 2⁵⁰ to 2: attention leaks into the blocks of other points. '
      + 'Raise it until nothing does. A lower margin is another network, and its digest says so.'] },
  { title: 'A computer', inside: true, state: { panel: 'program', program: 'least_squares', cycle: 5 },
    says: () => ['Look-ups compose into one instruction, F(a + b) − G(a − b), and that is a computer: program, memory and data are tokens, and one frozen block, applied again and again, '
      + 'executes them. Press Step: the instruction moves on, and what it wrote is marked.'] },
  { title: 'A GPT-2 that runs what you type', inside: true, state: { panel: 'text' },
    says: () => ['The whole computer as a language model: the prompt is a program in plain text, and greedy decoding writes its run. Press Run, and click a token to see where its heads looked. '
      + 'Then change a number, or choose another example: another prompt, another algorithm, the same weights.'] },
];

export const GLOSSARY = [
  ['token', 'One row of what the network reads: a list of numbers, its features.'],
  ['prompt', 'All tokens of one run. Data and algorithm are in it; the weights are the same for all.'],
  ['attention', 'Every query weighs all tokens by a softmax of scores, and returns the weighted average of their values.'],
  ['look-up table', 'Grid tokens whose values are chosen so that a softmax over them computes a function.'],
  ['sharpness, temperature', 'How fast attention falls with the distance from a grid token. Hard: the nearest one only. Spectral: several, with fitted values.'],
  ['margin', 'What keeps a query’s attention within its own block of the prompt. What gets out of it leaks.'],
  ['pass', 'One sweep of the frozen layer over all points, as many prompts as they fill.'],
  ['readout', 'The fixed sum of what the queries return.'],
  ['digest', 'SHA-256 of every weight with its name and shape: if it is the same, the network is.'],
  ['certificate', 'A bound of the error that is proven for these data, rounding included, with its derivation.'],
  ['drift', 'How far steps by the machine are from the same steps without it.'],
  ['ledger', 'What was computed in the prompt, by attention, by the readout and on the host.'],
];

/** The lesson's strip: where we are, what to see, back and on; `act` changes what a step lets change. */
export function drawLesson(step, go, state = {}, act = null) {
  const box = byId('lesson'), one = LESSON[step - 1];
  byId('learn').setAttribute('aria-pressed', String(Boolean(one)));
  box.hidden = !one;
  const panels = document.querySelector('.panels'), above = one?.inside ? box : document.querySelector('main');
  if (panels.previousElementSibling !== above) above.after(panels);
  if (!one) return;
  const button = (text, to) => el('button', { type: 'button', disabled: to < 1 || to > LESSON.length, onclick: () => go(to) }, text);
  const [text, patch] = one.act?.(state) ?? [];
  box.replaceChildren(
    el('div', { className: 'lesson-head' },
      el('h2', {}, `${step} of ${LESSON.length}: ${one.title}`),
      el('ol', { className: 'dots' }, ...LESSON.map(({ title }, i) => el('li', {},
        el('a', { href: `#lesson=${i + 1}`, title, 'aria-label': `Step ${i + 1}: ${title}`, ...(i + 1 === step ? { 'aria-current': 'step' } : {}) }, String(i + 1))))),
      el('div', { className: 'buttons' }, button('Back', step - 1), button('Next', step + 1),
        el('button', { type: 'button', onclick: () => go(0) }, 'End the lesson'))),
    el('p', {}, ...one.says(), ...(text ? [' ', el('button', { type: 'button', id: 'lesson-act', onclick: () => act(patch) }, text)] : [])),
  );
}

/** The glossary, in its dialog. */
export function drawGlossary() {
  byId('glossary-list').replaceChildren(...GLOSSARY.flatMap(([word, means]) => [el('dt', {}, word), el('dd', {}, means)]));
}
