// The text GPT-2 in this page: a GPT2LMHeadModel as an ONNX file, run token by token.

import { breath, digestOf, json, runtime, unpacked } from './runtime.js';
import { Language } from './text_language.js';

const ROOM = 256; // tokens that there is room for to begin with

/** A network that has been loaded, and the words that it reads and writes. */
export class TextNetwork {
  static async load() {
    const [ort, about, graph, weights] = await Promise.all([runtime(), json('text.json'), unpacked('text.onnx.gz'), unpacked('text.weights.gz')]);
    const session = await ort.InferenceSession.create(graph, { executionProviders: ['wasm'], externalData: [{ path: 'text.weights', data: weights }] });
    return Object.assign(new TextNetwork(), { ort, about, session, language: new Language(about), digest: await digestOf(about.digested, weights) });
  }

  /**
   * Greedy decoding from a prompt, until [end], the last position or `signal`. Yields {word, looks}: what was
   * written, and for every head that works where it looked, {layer, role, at, share}, `at` counted from the first token.
   */
  async* write(ids, signal) {
    const { ort, session, about } = this, { words, positions, layers, heads, size } = about;
    const wide = 2 * layers * heads * size; // keys and values of a token
    let past = new Float32Array(ROOM * wide), before = 0, given = ids;
    while (before + given.length < positions && !signal.aborted) {
      const count = before + given.length;
      const out = await session.run({
        ids: new ort.Tensor('int64', BigInt64Array.from(given, BigInt), [1, given.length]),
        past: new ort.Tensor('float32', past.subarray(0, before * wide), [before, 2, layers, heads, size]),
      });
      if (count * wide > past.length) past = longer(past, count * wide);
      past.set(out.new.data, before * wide);
      const token = largestOf(out.scores.data);
      yield { word: words[token], looks: this.looks(out.attention.data, count) };
      if (words[token] === '[end]') return;
      [given, before] = [[token], count];
      await breath();
    }
  }

  looks(attention, count) {
    const { roles, heads } = this.about;
    return roles.flatMap((layer, l) => layer.flatMap((role, h) => {
      if (role === null) return [];
      const row = attention.subarray((l * heads + h) * count, (l * heads + h + 1) * count), at = largestOf(row);
      return [{ layer: l + 1, role, at, share: row[at] }];
    }));
  }
}

/** The same numbers with room for more. */
function longer(values, least) {
  const found = new Float32Array(Math.max(least, 2 * values.length));
  found.set(values);
  return found;
}

function largestOf(values) {
  let best = 0;
  for (let k = 1; k < values.length; k += 1) if (values[k] > values[best]) best = k;
  return best;
}
