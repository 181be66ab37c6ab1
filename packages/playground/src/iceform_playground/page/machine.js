// The frozen layer in this page: an ONNX file, run by onnxruntime-web in float64.

import { averages, Layout, lookUps } from './prompts.js';
import { breath, digestOf, file, json, runtime, unpacked } from './runtime.js';
import { FROZEN_MARGIN } from './state.js';

const AT_ONCE = 48; // prompts of one run
const FROZEN = 2 ** FROZEN_MARGIN;
/** The frozen network: weights, their digest, and a session that multiplies them. */
export class Machine {
  static async load() {
    const [ort, about, graph, weights] = await Promise.all([
      runtime(), json('machine.json'), file('machine.onnx').then((r) => r.arrayBuffer()), unpacked('machine.weights.gz'),
    ]);
    return Machine.of(ort, about, graph, weights.buffer);
  }

  /** A network of these weights. */
  static async of(ort, about, graph, weights) {
    const data = new Uint8Array(weights);
    const session = await ort.InferenceSession.create(new Uint8Array(graph), {
      executionProviders: ['wasm'], externalData: [{ path: 'machine.weights', data }],
    });
    return Object.assign(new Machine(), { ort, about, graph, session, weights: data, layout: new Layout(about), ran: 0, turn: Promise.resolve() });
  }

  /** The network with another margin between blocks written into its weights; the last one is kept. */
  async withMargin(margin) {
    if (margin === FROZEN) return this;
    if (this.other?.margin === margin) return this.other.machine;
    const weights = Float64Array.from(new Float64Array(this.weights.buffer), (v) => (v === -FROZEN ? -margin : v));
    const machine = await Machine.of(this.ort, this.about, this.graph, weights.buffer);
    await this.other?.machine.alone(() => this.other.machine.session.release());
    this.other = { margin, machine };
    return machine;
  }

  /** SHA-256 of the weights that the session was given, with their names, dtypes and shapes. */
  digest() { return digestOf(this.about.digested, this.weights); }

  /** Every prompt through the frozen layer; what `wanted` names, one array for each run. */
  async run({ tokens, prompts }, signal = null, wanted = 'output') {
    const { count, features } = this.layout, size = count * features;
    const answers = [];
    for (let p = 0; p < prompts; p += AT_ONCE) {
      signal?.throwIfAborted();
      const some = Math.min(AT_ONCE, prompts - p);
      const given = new this.ort.Tensor('float64', tokens.subarray(p * size, (p + some) * size), [some, count, features]);
      const found = await this.alone(() => this.session.run({ tokens: given }, [wanted]));
      answers.push(Float64Array.from(found[wanted].data));
      given.dispose();
      found[wanted].dispose();
      this.ran += some;
      await breath();
    }
    return answers.length === 1 ? answers[0] : concatenated(answers);
  }

  /** One run at a time: a session takes no second one meanwhile. */
  alone(work) {
    const mine = this.turn.then(work);
    this.turn = mine.catch(() => {});
    return mine;
  }

  /** Rows (A(z_i) - o_i) (x_i, 1) of the samples. */
  async lookUp(table, data, signal) {
    const { samples, rows, wide, dim } = this.layout, d = data.w.length;
    const out = await this.run(lookUps(this.layout, table, data), signal);
    return data.x.map((_, i) => {
      const row = (Math.floor(i / samples) * rows + (i % samples)) * wide;
      return [...out.subarray(row, row + d), out[row + dim]];
    });
  }

  /** A(z) for every number: numbers are samples of one feature, and w is 1. */
  async lookUpAll(table, z, signal) {
    const found = await this.lookUp(table, { x: z.map((v) => [v]), y: z.map(() => 0), w: [1] }, signal);
    return found.map((row) => row[1]);
  }

  /** The values' averages at the points, as many prompts at a time as one run takes. */
  async average(data, signal) {
    const { samples, rows, wide } = this.layout, v = data.values[0].length, found = [];
    const apart = Boolean(data.seen) || Array.isArray(data.biases[0]), some = AT_ONCE * (apart ? 1 : samples);
    for (let first = 0; first < data.points.length; first += some) {
      const part = (all) => all.slice(first, first + some);
      const written = averages(this.layout, {
        ...data, points: part(data.points), seen: data.seen && part(data.seen), biases: Array.isArray(data.biases[0]) ? part(data.biases) : data.biases,
      });
      const out = await this.run(written, signal);
      part(data.points).forEach((_, q) => {
        const row = (Math.floor(q / written.each) * rows + samples + (q % written.each)) * wide;
        found.push([...out.subarray(row, row + v)]);
      });
    }
    return found;
  }
}

function concatenated(parts) {
  const all = new Float64Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => { all.set(part, at); return at + part.length; }, 0);
  return all;
}
