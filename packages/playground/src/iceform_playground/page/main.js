// The page: state in, picture out.

import { Board } from './board.js';
import { control, ownControl } from './controls.js';
import { byId, debounced, described, el } from './dom.js';
import { ask, awake, catalogue } from './engine.js';
import { drawGlossary, drawLesson, LESSON } from './lesson.js';
import { bounded, featureNames, linear, short } from './model.js';
import { PANELS } from './panels.js';
import { parsePoints, PRESETS } from './presets.js';
import { DEFAULTS, fitQuestion, fromLink, toLink } from './state.js';
import { Trouble } from './trouble.js';

const BUSY = 150; // milliseconds without an answer before the page says so
const QUIET = 120; // milliseconds without a change before the machine is asked
const FRAME_TIME = 90; // of a step that is played
const CURVE = 201;
const TASKS = { curve: 'Curves: y from x', classes: 'Classes: the group from x and y', shape: 'Shape' };
const RUNNING = ['method', 'rate', 'passes'];
const LOOKUP = ['regime', 'tokens', 'sharpness'];

const ABOUT = 'Everything runs in your browser. Three frozen networks are ONNX files: the GPT-2 that descends and the look-up layer behind the board, in float64, and the text GPT-2, in float32. '
  + 'Digests are computed here, of the bytes that ran. Tables and their errors were proven when the page was built; proofs of answers, and losses and programs of your own, are what the library adds.';

const page = { state: null, answer: null, entry: null, frame: 0, runs: 0, digest: null, tool: '0', timer: 0, offer: null };
let board = null;

// -------------------------------------------------------------------------------------------- state

function restore() {
  const found = fromLink(location.hash.slice(1));
  found.lesson = LESSON[found.lesson - 1] ? found.lesson : 0;
  const base = baseOf(found.lesson);
  page.state = { ...DEFAULTS, sliders: [], ...base, ...found, values: { ...base.values, ...found.values } };
  if (!Object.hasOwn(PRESETS, page.state.preset) && !found.points) page.state.preset = DEFAULTS.preset;
  if (!found.points) page.state.points = PRESETS[page.state.preset].points();
  if (!page.offer.algorithms.some((entry) => entry.name === page.state.algorithm)) page.state.algorithm = DEFAULTS.algorithm;
  if (!Object.hasOwn(PANELS, page.state.panel)) page.state.panel = DEFAULTS.panel;
  if (!page.offer.programs.some(({ name }) => name === page.state.program)) page.state.program = DEFAULTS.program;
}

/** What a step of the lesson sets. */
const baseOf = (lesson) => LESSON[lesson - 1]?.state ?? {};
const link = () => `#${toLink(page.state, baseOf(page.state.lesson))}`;

const remember = debounced(() => history.replaceState(null, '', link()), 200);
const run = debounced(() => fit(), QUIET);
const redraw = debounced(() => drawPanel(), QUIET);

/** Change settings that a fit depends on. */
function change(patch) {
  Object.assign(page.state, patch, { frame: -1 });
  remember();
  run();
}

/** Change settings that only the panel depends on. */
function view(patch) {
  Object.assign(page.state, patch);
  remember();
  redraw();
}

/** Change settings that the panel itself has already drawn. */
function keep(patch) {
  Object.assign(page.state, patch);
  remember();
}

// ----------------------------------------------------------------------------------------- the fit

async function fit() {
  if (!page.state.points.length) {
    page.answer = null;
    board.clearFit();
    say('Draw a point to begin.');
    return;
  }
  stop();
  const asked = performance.now(), mine = page.asked = {};
  const waiting = setTimeout(() => busy(true), BUSY);
  try {
    const answer = await ask('fit', fitQuestion(page.state));
    if (!answer) return;
    page.answer = answer;
    page.took = performance.now() - asked;
    complain(answer.note);
    counted(answer.machine.digest);
    showFrames();
    drawPanel();
  } catch (error) {
    report(error);
  } finally {
    clearTimeout(waiting);
    if (page.asked === mine) busy(false);
  }
}

/** Say that the machine computes; what is drawn is of the question before. */
function busy(is) {
  byId('board').setAttribute('aria-busy', String(is));
  document.querySelector('.stage').classList.toggle('computing', is);
  if (is) say('Computing…');
}

function counted(digest) {
  const same = page.digest === null || page.digest === digest;
  page.digest ??= digest;
  page.runs += 1;
  byId('digest').textContent = `${digest.slice(0, 8)}…${digest.slice(-4)}`;
  byId('digest').title = digest;
  byId('digest').dataset.digest = digest;
  byId('unchanged').textContent = same
    ? `the same after ${page.runs} run${page.runs === 1 ? '' : 's'}`
    : 'CHANGED';
}

function showFrames() {
  document.querySelector('main').classList.remove('stale');
  const last = Math.max(0, page.answer.frames.length - 1);
  page.frame = page.state.frame < 0 ? last : Math.min(page.state.frame, last);
  Object.assign(byId('frame'), { max: last, value: page.frame, disabled: last === 0 });
  byId('play').disabled = last === 0;
  drawFit();
}

function drawFit() {
  const { answer, state, entry, frame } = page;
  byId('frame-name').textContent = answer.frames.length > 1 ? `${frame} of ${answer.frames.length - 1}` : 'one and only';
  const at = answer.frames[frame];
  if (answer.axes) board.drawAxesOf(answer.axes);
  else if (answer.curve) board.drawCurves(answer.curve, null);
  else if (answer.plane) board.drawPlane(answer.plane, { middle: 0.5, levels: [], scale: 0.25 });
  else if (entry.task === 'curve') {
    const f = linear('curve', state.degree, at.coef, at.intercept);
    const g = at.exact && linear('curve', state.degree, at.exact, at.exact.at(-1));
    board.drawCurves(sampled(f), g && sampled(g));
  } else {
    const f = linear('classes', state.degree, at.coef, at.intercept);
    const street = ['svm', 'hinge'].includes(state.algorithm) ? [-1, 1] : [];
    board.drawPlane(board.mesh(f), { middle: 0, levels: street, scale: 1 });
  }
  drawFacts(at);
  drawLegend();
}

const sampled = (f) => Array.from({ length: CURVE }, (_, i) => f(-1 + (2 * i) / (CURVE - 1), 0));

function drawFacts(at) {
  const { answer, state, entry, took } = page;
  const facts = [
    ['passes', at ? at.passes : answer.passes],
    ['prompts a pass', answer.prompts],
    ['answered in', `${Math.round(took)} ms`],
  ];
  if (at?.exact) facts.unshift(['drift from exact', short(at.gap)]);
  if (answer.table) facts.unshift(['look-up', `${answer.table.tokens} tokens${answer.table.error === null ? '' : `, ${bounded(answer.table.error, answer.table.kind)}`}`]);
  if (at) facts.push(['coefficients', coefficients(at, entry, state)]);
  described(byId('facts'), facts);
  byId('facts').dataset.gap = at?.gap ?? '';
  say(`${entry.title} on ${state.points.length} points${at?.exact ? `: ${short(at.gap)} from the same steps without the machine` : ''}.`);
}

function coefficients(at, entry, state) {
  const names = featureNames(entry.task, state.degree);
  return [short(at.intercept, 2), ...at.coef.map((c, j) => `${short(c, 2)} ${names[j]}`)].join(', ');
}

function drawLegend() {
  const { entry, answer, state } = page;
  const item = (kind, text) => el('li', {}, el('i', { className: kind, 'aria-hidden': 'true' }), text);
  const items = [item('', answer.axes ? 'two deviations along each component' : entry.task === 'classes' ? 'where the classes meet' : 'by frozen attention')];
  if (entry.task === 'curve' && answer.frames[0]?.exact) items.push(item('exact', 'the same steps without the machine'));
  if (['svm', 'hinge'].includes(state.algorithm)) items.push(item('street', 'edges of the street'));
  byId('legend').replaceChildren(...items);
}

const say = (text) => { byId('status').textContent = text; };

/** Complain, beside the field that is meant where there is one. */
function complain(text, field = null) {
  const alert = byId('trouble'), home = byId('status');
  document.querySelectorAll('[aria-invalid]').forEach((one) => one.removeAttribute('aria-invalid'));
  alert.hidden = !text;
  alert.textContent = text ?? '';
  if (!field) {
    home.after(alert);
    return;
  }
  field.setAttribute('aria-invalid', 'true');
  field.closest('.field').append(alert);
}

/** The field that an error is about. */
const fieldOf = ({ where }) => byId(`set-${(where ?? '').split('.').at(-1)}`);

function report(error) {
  if (!(error instanceof Trouble)) throw error;
  complain(error.message, fieldOf(error));
  say('');
  board?.clearFit();
}

// ---------------------------------------------------------------------------------------- controls

function drawControls() {
  const { state } = page;
  page.entry = page.offer.algorithms.find((entry) => entry.name === state.algorithm);
  const { entry } = page;
  byId('algorithm').value = state.algorithm;
  byId('says').textContent = entry.says;
  byId('objective').textContent = entry.objective;
  complain(null);
  const set = (name, value) => {
    change({ [name]: value });
    if (['method', 'regime', 'tokens'].includes(name)) dim();
  };
  const fill = (id, names) => byId(id).replaceChildren(...names.map((name) => control(name, state, set)));
  state.sliders = entry.sliders;
  fill('options', [...(entry.linear ? ['degree'] : []), ...(entry.typed ? ['formula'] : [])]);
  const own = (name, value) => change({ values: { ...page.state.values, [name]: value } });
  byId('options').append(...entry.sliders.map((slider) => ownControl(slider, state.values, own)));
  fill('running', RUNNING);
  fill('lookup', LOOKUP);
  dim();
  teach();
}

/** Settings that do nothing for this algorithm are dimmed. */
function dim() {
  const { state, entry } = page;
  const loop = entry.descends, sparse = ['lasso', 'elastic-net'].includes(entry.name);
  const active = {
    method: loop, rate: loop && (state.method !== 'newton' || sparse), passes: loop || entry.name === 'perceptron',
    regime: loop, tokens: loop, sharpness: loop && state.regime === 'hard',
  };
  for (const [name, on] of Object.entries(active)) {
    const input = byId(`set-${name}`);
    input.disabled = !on;
    input.closest('.field').classList.toggle('dim', !on);
  }
}

function fillChoices() {
  const groups = Object.entries(TASKS).map(([task, label]) => el('optgroup', { label },
    ...page.offer.algorithms.filter((entry) => entry.task === task).map((entry) => el('option', { value: entry.name }, entry.title))));
  byId('algorithm').replaceChildren(...groups);
  byId('preset').replaceChildren(
    ...Object.entries(PRESETS).map(([name, { title }]) => el('option', { value: name }, title)),
    el('option', { value: '' }, 'Your own'));
}

// ------------------------------------------------------------------------------------------ panels

function drawTabs() {
  byId('tabs').replaceChildren(...Object.entries(PANELS).map(([name, { title }]) => el('button', {
    type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': 'panel', 'aria-selected': String(name === page.state.panel),
    tabIndex: name === page.state.panel ? 0 : -1, onclick: () => { view({ panel: name }); selectTab(); },
  }, title)));
  byId('panel').setAttribute('aria-labelledby', `tab-${page.state.panel}`);
}

function selectTab() {
  for (const tab of byId('tabs').children) {
    const chosen = tab.id === `tab-${page.state.panel}`;
    tab.setAttribute('aria-selected', String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) byId('tabs').scrollLeft = tab.offsetLeft - byId('tabs').offsetLeft - 40; // where they are one row
  }
  byId('panel').setAttribute('aria-labelledby', `tab-${page.state.panel}`);
}

function walkTabs(event) {
  const tabs = [...byId('tabs').children], at = tabs.indexOf(document.activeElement);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (next === undefined || at < 0) return;
  event.preventDefault();
  const tab = tabs[(next + tabs.length) % tabs.length];
  tab.focus();
  tab.click();
}

async function drawPanel() {
  const node = byId('panel'), name = page.state.panel;
  if (!page.answer && !PANELS[name].own) return;
  node.classList.add('busy');
  node.setAttribute('aria-busy', 'true');
  try {
    await PANELS[name].draw(node, { ...page, set: view, keep, change, drawControls });
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    node.replaceChildren(el('p', { className: 'trouble', role: 'alert' }, error.message));
  } finally {
    if (page.state.panel === name) {
      node.classList.remove('busy');
      node.setAttribute('aria-busy', 'false');
      node.dataset.drawn = name;
    }
  }
}

// ----------------------------------------------------------------------------------- playing steps

function play() {
  if (page.timer) return stop();
  const last = page.answer.frames.length - 1;
  if (page.frame >= last) page.frame = 0;
  byId('play').textContent = 'Pause';
  page.timer = setInterval(() => {
    toFrame(page.frame + 1);
    if (page.frame >= last) stop();
  }, FRAME_TIME);
  return undefined;
}

function stop() {
  clearInterval(page.timer);
  page.timer = 0;
  byId('play').textContent = 'Play';
}

function toFrame(frame) {
  page.frame = Math.max(0, Math.min(frame, page.answer.frames.length - 1));
  byId('frame').value = page.frame;
  const last = page.frame === page.answer.frames.length - 1;
  keep({ frame: last ? -1 : page.frame });
  drawFit();
  if (['passes', 'prompt', 'attention', 'margin'].includes(page.state.panel)) redraw();
}

// ------------------------------------------------------------------------------------ points, theme

function setPoints(points, preset = '') {
  page.state.points = points;
  page.state.preset = preset;
  byId('preset').value = preset;
  board.drawPoints();
  change({ first: 0 });
}

function setTool(tool) {
  page.tool = tool;
  for (const button of document.querySelectorAll('[data-tool]')) {
    button.setAttribute('aria-pressed', String(button.dataset.tool === tool));
  }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId('theme').setAttribute('aria-pressed', String(name === 'dark'));
  byId('theme').textContent = name === 'dark' ? 'Light' : 'Dark';
  if (page.answer) {
    drawFit();
    drawPanel();
  }
}

async function copyLink() {
  history.replaceState(null, '', link());
  try {
    await navigator.clipboard.writeText(location.href);
    say('The link is copied; it holds the points and every setting.');
  } catch {
    say('The address of this page holds the points and every setting: copy it from the address bar.');
  }
}

function takeLoaded(event) {
  try {
    setPoints(parsePoints(byId('loader-text').value, page.offer.most_points));
  } catch (error) {
    event.preventDefault();
    byId('loader-trouble').hidden = false;
    byId('loader-trouble').textContent = error.message;
  }
}

async function readFile(event) {
  const [file] = event.target.files;
  if (file) byId('loader-text').value = (await file.slice(0, 1 << 20).text());
}

// ------------------------------------------------------------------------------------------- start

function listen() {
  byId('algorithm').addEventListener('change', (event) => {
    page.state.algorithm = event.target.value;
    complain(null);
    drawControls();
    change({});
  });
  byId('preset').addEventListener('change', ({ target }) => target.value && setPoints(PRESETS[target.value].points(), target.value));
  byId('clear').addEventListener('click', () => setPoints([]));
  byId('load').addEventListener('click', () => { byId('loader-trouble').hidden = true; byId('loader').showModal(); });
  byId('loader-take').addEventListener('click', takeLoaded);
  byId('loader-file').addEventListener('change', readFile);
  byId('share').addEventListener('click', copyLink);
  byId('learn').addEventListener('click', () => goTo(page.state.lesson ? 0 : 1));
  byId('words').addEventListener('click', () => byId('glossary').showModal());
  byId('theme').addEventListener('click', () => setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
  byId('play').addEventListener('click', play);
  byId('frame').addEventListener('input', (event) => { stop(); toFrame(Number(event.target.value)); });
  byId('tabs').addEventListener('keydown', walkTabs);
  for (const button of document.querySelectorAll('[data-tool]')) button.addEventListener('click', () => setTool(button.dataset.tool));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', ({ matches }) => setTheme(matches ? 'dark' : 'light'));
  addEventListener('hashchange', () => { restore(); show(); });
}

/** Go to a step of the lesson; 0 leaves it, and keeps what is set. */
function goTo(step) {
  if (step) {
    location.hash = `lesson=${step}`;
    return;
  }
  keep({ lesson: 0 });
  drawLesson(0, goTo);
}

/** What a step of the lesson lets change, and the panel with it. */
function act(patch) {
  change(patch);
  drawControls();
  redraw();
}

const teach = () => drawLesson(page.state.lesson, goTo, page.state, act);

function show() {
  document.querySelector('main').classList.add('stale'); // until it is answered, nothing of the step before is shown
  byId('preset').value = page.state.preset;
  drawControls();
  drawTabs();
  selectTab();
  board.drawPoints();
  byId('panel').classList.add('busy'); // it is of the state before
  byId('panel').setAttribute('aria-busy', 'true');
  if (PANELS[page.state.panel].own) drawPanel();
  run();
}

async function start() {
  setTheme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  try {
    page.offer = await catalogue();
  } catch (error) {
    return report(error);
  }
  if (!location.hash) history.replaceState(null, '', '#lesson=1');
  restore();
  drawGlossary();
  byId('about').textContent = ABOUT;
  byId('preset').value = page.state.preset;
  board = new Board({
    points: () => page.state.points, change: (points) => setPoints(points), tool: () => page.tool, setTool,
    most: () => page.offer.most_points, full: () => complain(`The board holds ${page.offer.most_points} points; erase some first.`),
  });
  fillChoices();
  listen();
  board.drawPoints();
  try {
    await awake(() => { byId('waking').hidden = false; });
  } catch (error) {
    return report(error);
  } finally {
    byId('waking').hidden = true;
  }
  return show();
}

start();
