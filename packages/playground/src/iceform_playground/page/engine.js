// The engine: the frozen network runs in this page. What takes the library to compute (tables with
// their proven errors, a literal run of the computer) is read from files.

import { largest } from './algebra.js';
import { tableOn } from './descents.js';
import { LOSSES } from './losses.js';
import { Machine } from './machine.js';
import { average, bySteps, components, huber, perceptron, setting } from './models.js';
import { averages, lookUps } from './prompts.js';
import { opening, sharpestFor } from './reads.js';
import { json, unpackedJson } from './runtime.js';
import { FROZEN_MARGIN, HARD } from './state.js';
import { Trouble } from './trouble.js';

const MESH = 401;
const FLOOR = 1e-40;
const RATES = 4; // errors against tokens are those of z in [-4, 4]

const page = { machine: null, stored: null, offer: null, programs: new Map() };
const pending = new Map(); // questions by name: a newer one takes the place of an older one

/** What the page offers. */
export async function catalogue() {
  page.offer ??= await json('catalogue.json');
  return page.offer;
}

/** Load the network, its weights and the tables. */
export async function awake(waiting) {
  if (page.machine) return;
  waiting();
  [page.machine, page.stored] = await Promise.all([Machine.load(), unpackedJson('stored.json.gz')]);
}

/** The answer to a question; null where a newer one has taken this one's place. */
export async function ask(name, question) {
  pending.get(name)?.abort();
  const mine = new AbortController();
  pending.set(name, mine);
  try {
    return await ANSWERS[name](question, mine.signal);
  } catch (error) {
    if (error.name === 'AbortError') return null;
    throw error;
  } finally {
    if (pending.get(name) === mine) pending.delete(name);
  }
}

const ANSWERS = { fit, inside, lookup: lookedUp, rates };

const refuse = (message, where = null) => new Trouble({ kind: 'refused', message, where });

// ---------------------------------------------------------------------------------------- tables

/** How labels are written: as the loss takes them, and as signs for the perceptron. */
const labelled = (entry, loss) => loss ?? (entry.name === 'perceptron' ? { kind: 'margin' } : null);

const entryOf = (name) => page.offer.algorithms.find((entry) => entry.name === name);

/** What is stored of the loss that a question names; null where it looks none up. */
function lossOf({ algorithm, formula, options }) {
  const fits = ({ loss, parameters }) => (algorithm === 'custom' ? loss === formula
    : Object.entries(parameters).every(([key, value]) => !(key in options) || options[key] === value));
  const own = page.stored.losses.filter((one) => one.algorithm === algorithm);
  return own.find(fits) ?? own[0] ?? null;
}

/** Tables by their reach, as a look-up asks for them. */
function tablesOf(stored, { regime, tokens, sharpness, moved }) {
  const wide = Object.keys(Object.values(stored.tables)[0]).map(Number);
  const chosen = regime === 'hard' ? Object.fromEntries(wide.map((reach) => [reach, hardTable(stored, reach, tokens, sharpness ?? HARD)]))
    : stored.tables.any ?? stored.tables[tokens];
  return moved ? Object.fromEntries(Object.entries(chosen).map(([reach, table]) => [reach, withMoved(table, moved)])) : chosen;
}

/** A table with one value moved by hand: its error grows by as much. */
function withMoved(table, { token, by }) {
  if (token >= table.tokens) throw refuse(`token ${token} was moved, this table has ${table.tokens}; they are counted from 0`, 'lookup.moved.token');
  const values = [...table.values];
  values[token] += by;
  return { ...table, values, error: (table.error + Math.abs(by)) * (1 + Number.EPSILON) };
}

/** The paper's regime: v_k = f(L_k). Its error is not proven here. */
function hardTable({ loss, parameters }, reach, tokens, sharpness) {
  const cells = tokens - 1, spacing = (2 * reach) / cells, beta = sharpness / spacing ** 2;
  const nodes = Array.from({ length: tokens }, (_, k) => (k - 0.5 * cells) * spacing);
  return {
    regime: 'hard', tokens, sharpness, low: -reach, high: reach, center: 0, error: null, nodes,
    slopes: nodes.map((at) => 2 * beta * at), biases: nodes.map((at) => -beta * at * at),
    values: nodes.map(LOSSES[loss](parameters).slope),
  };
}

// ------------------------------------------------------------------------------------------- fit

async function fit(question, signal) {
  const { model, running, lookup } = question, { machine, stored } = page;
  const entry = entryOf(model.algorithm), loss = lossOf(model), { x, y } = setting(question, entry, labelled(entry, loss));
  const given = { machine, entry, running, options: { ...model.options }, x, y, signal };
  const before = machine.ran;
  const found = await run(entry, loss, given, stored, lookup);
  const digest = await machine.digest();
  const prompts = entry.linear || entry.task === 'shape' ? Math.ceil(x.length / machine.layout.samples) : machine.ran - before;
  return {
    machine: { ...page.offer.machine, digest }, frames: [], curve: null, plane: null, axes: null, note: null, table: null, ...found,
    prompts, attestation: attested(digest, machine.ran - before), ledger: ledger(entry, running.method),
  };
}

async function run(entry, loss, given, stored, lookup) {
  if (entry.descends) return bySteps({ ...given, stored: loss, tables: tablesOf(loss, lookup), clips: stored.clips });
  if (entry.name === 'huber') return huber({ ...given, tables: stored.clips, squares: stored.squares });
  if (entry.name === 'perceptron') return perceptron(given);
  if (entry.task === 'shape') return components({ ...given, tables: stored.identity });
  return average(given);
}

const attested = (digest, prompts) => `${prompts} prompts went through machine.onnx, run by onnxruntime-web in float64, in this page.\n`
  + `SHA-256 of the weights that the session was given: ${digest}\n`
  + `SHA-256 that Python has for these sizes:            ${page.offer.machine.digest}`;

function ledger(entry, method) {
  const turned = entry.descends && method === 'newton' ? ', directions of the steps by eigenvectors of the Gram matrix' : '';
  const host = entry.linear ? `means and deviations of the columns${turned}, and lengths of the steps` : entry.task === 'shape' ? 'the mean, and eigenvectors of a 2 x 2 matrix'
    : 'the mean of the samples, and how sharp a read can be';
  const prompt = entry.linear ? 'scaled samples and labels, the coefficients, and a table of the loss’s derivative' : 'samples, |x|², labels or numbers, and the points that ask';
  return `in the prompt: ${prompt}\nby attention: every look-up and every average\nby the readout: sums of rows\non the host, in this page: ${host}`;
}

// ---------------------------------------------------------------------------------- looking inside

async function inside(question, signal) {
  const { model, lookup, first, frame } = question, { layout } = page.machine;
  const entry = entryOf(model.algorithm), loss = lossOf(model), { x, y } = setting(question, entry, labelled(entry, loss));
  if (!entry.descends && (entry.linear || entry.task === 'shape')) {
    throw refuse(`${entry.title} has no prompt to show here; choose an algorithm that looks a loss up or averages samples`);
  }
  const seen = entry.descends ? await lookUpPrompt({ question, entry, loss, x, y, lookup, first, frame, signal })
    : averagePrompt(entry, model.options, x, y, layout);
  const margin = entry.descends ? question.margin ?? 2 ** FROZEN_MARGIN : null;
  const machine = margin === null ? page.machine : await page.machine.withMargin(margin);
  const weights = await machine.run(seen.written, signal, 'weights');
  const row = (q) => [...weights.subarray(q * layout.count, (q + 1) * layout.count)];
  const asked = seen.rows.map((q) => row(q)), pick = (all) => seen.kept.map((k) => all[k]);
  const shares = asked.map((all) => seen.blocks.map((_, b) => all.reduce((sum, v, k) => sum + (seen.block(k) === b ? v : 0), 0)));
  const mass = shares.map((row) => row.map((share) => Math.log10(Math.max(FLOOR, share))));
  const leaks = shares.map((row, i) => (entry.descends ? row.reduce((sum, share, b) => sum + (b === i ? 0 : share), 0) : null));
  const tokens = seen.kept.map((k) => [...seen.written.tokens.subarray(k * layout.features, (k + 1) * layout.features)]);
  return {
    digest: await machine.digest(),
    prompt: { roles: pick(seen.roles), features: layout.names(), values: tokens, hidden: layout.count - seen.kept.length },
    attention: { queries: seen.queries, keys: pick(seen.roles), weights: asked.map(pick) },
    margins: { queries: seen.queries, gaps: asked.map(() => null), leaks, between: entry.descends ? 'blocks' : 'keys', margin, mass, blocks: seen.blocks },
  };
}

async function lookUpPrompt({ question, entry, loss, x, y, lookup, first, frame, signal }) {
  const { machine, stored } = page, { layout } = machine, tables = tablesOf(loss, lookup);
  const running = { ...question.running, passes: Math.min(frame, question.running.passes) };
  const at = await bySteps({ machine, stored: loss, tables, clips: stored.clips, running, options: question.model.options, x, y, signal, open: true });
  const start = Math.min(first, Math.max(0, x.length - layout.samples)), { problem, w } = at;
  const chosen = Array.from({ length: Math.min(layout.samples, x.length) }, (_, i) => start + i);
  const some = (all) => chosen.map((i) => all[i]);
  const far = largest(problem.residuals(w)), table = tableOn(tables, Math.max(problem.reach, far));
  const written = lookUps(layout, table, { x: some(problem.samples), y: some(problem.labels), w, offsets: problem.offsets && some(problem.offsets) });
  const block = (k) => (k < layout.grid ? Math.floor(k / layout.tokens) : -1);
  const roles = Array.from({ length: layout.count }, (_, k) => {
    if (k >= layout.grid) return k - layout.grid < chosen.length ? `query of point ${chosen[k - layout.grid]}` : 'unused query';
    const place = k % layout.tokens;
    return `point ${chosen[block(k)] ?? '–'}, ${place < table.nodes.length ? `grid z = ${Number(table.nodes[place].toPrecision(4))}` : 'unused'}`;
  });
  const kept = roles.map((_, k) => k).filter((k) => (k < layout.grid ? block(k) < chosen.length && k % layout.tokens < table.tokens : k < layout.grid + chosen.length));
  return { written, roles, kept, rows: chosen.map((_, b) => b), queries: chosen.map((i) => `query of point ${i}`), blocks: chosen.map((i) => `point ${i}`), block, entry };
}

function averagePrompt(entry, options, x, y, layout) {
  const asks = [-0.75, -0.25, 0.25, 0.75].slice(0, layout.samples), points = asks.map((at) => [at, 0].slice(0, x[0].length));
  const near = 'n_neighbors' in options, gamma = near ? sharpestFor(x, points) : options.gamma;
  const middle = (x.length - 1) / 2;
  const values = near ? x.map((_, i) => [(i - middle) / x.length, ((i - middle) / x.length) ** 2]) : y.map((v) => [v]);
  const written = averages(layout, opening(x, values, points, gamma));
  const roles = Array.from({ length: layout.count }, (_, k) => (k < x.length ? `point ${k}` : k >= layout.count - layout.samples ? `query at x = ${asks[k - layout.count + layout.samples]}` : 'unused'));
  const kept = [...x.map((_, i) => i), ...asks.map((_, q) => layout.count - layout.samples + q)];
  return { written, roles, kept, rows: asks.map((_, q) => layout.samples + q), queries: asks.map((at) => `query at x = ${at}`), blocks: ['samples'], block: (k) => (k < x.length ? 0 : -1), entry };
}

// ------------------------------------------------------------------------------- look-up and rates

function lookedUp({ loss, lookup, reach }) {
  const stored = lossOf(loss);
  if (!stored) throw refuse('This algorithm looks no loss up: it averages samples, or counts mistakes');
  const { slope } = LOSSES[stored.loss](stored.parameters);
  const z = Array.from({ length: MESH }, (_, i) => -reach + (2 * reach * i) / (MESH - 1));
  const spectral = tablesOf(stored, { ...lookup, regime: 'spectral' })[reach];
  const hard = hardTable(stored, reach, lookup.tokens, lookup.sharpness ?? HARD);
  return { name: stored.name, z, exact: z.map(slope), spectral, hard };
}

function rates({ loss }) {
  const stored = lossOf(loss);
  if (!stored) throw refuse('This algorithm looks no loss up: it averages samples, or counts mistakes');
  return { ...page.stored.rates[stored.key], reach: RATES };
}

// ---------------------------------------------------------------------------------- the computer

/** A stored literal run of a program: {answer, cycles}. */
export async function programRun(name) {
  if (!page.programs.has(name)) page.programs.set(name, await unpackedJson(`program-${name}.json.gz`));
  return page.programs.get(name);
}
