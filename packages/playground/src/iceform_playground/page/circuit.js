// The circuit of the live GPT-2, head by head, as its design states it: what the network must do, and
// what it must do without a head. Everything here is a prediction; the network is in descent.js.

const UNIT = 2 ** -52;
const ROUNDINGS = 16; // operations of a term, beside the lengths of its sums
const NUDGE = 2 ** -20;

/** Coefficients by layer, for points [[x, y], ...]; `gone` is {layer, head}, counted from 0, or null. */
export class Circuit {
  constructor(about) {
    Object.assign(this, about);
    [this.penaltyHead, this.kept, this.lost] = [0, 1, 2].map((k) => this.pairs.length + k);
  }

  /** From a state {w, v} before layer `first` to the end: states before it and after each layer. */
  walk(points, gone, first = 0, start = { w: [0, 0], v: [0, 0] }) {
    const states = [start];
    for (let layer = first; layer < this.layers; layer += 1) states.push(this.turn(points, states.at(-1), gone?.layer === layer ? gone.head : -1));
    return states;
  }

  /** One layer: what each head that is left adds. */
  turn(points, { w, v }, gone) {
    const next = { w: [...w], v: [...v], terms: 0 }, scale = Math.exp(-this.logit), rate = this.lr / points.length;
    const add = (name, values) => values.forEach((value, k) => { next[name][k] += value; next.terms += Math.abs(value); });
    this.pairs.forEach(({ t, share }, head) => {
      if (head === gone) return;
      let [all, mass] = [[0, 0], 1];
      for (const [x, y] of points) {
        const e = Math.exp(t * (w[0] + w[1] * x - y));
        [all, mass] = [[all[0] + e, all[1] + e * x], mass + e];
      }
      const values = all.map((value) => (share * rate * value) / (1 + scale * mass));
      add('w', values);
      add('v', values);
    });
    if (gone !== this.penaltyHead) for (const name of ['w', 'v']) add(name, w.map((value) => -this.lr * this.penalty * value));
    if (gone !== this.kept) add('w', v.map((value) => this.momentum * value));
    if (gone !== this.lost) add('v', v.map((value) => (this.momentum - 1) * value));
    return next;
  }

  /** What each head adds to the coefficients in each layer: lengths by layer and head. */
  shares(points) {
    const states = this.walk(points, null);
    return states.slice(0, -1).map((state) => Array.from({ length: this.heads }, (_, head) => {
      const [whole, less] = [this.turn(points, state, -1), this.turn(points, state, head)];
      return Math.hypot(...['w', 'v'].flatMap((name) => whole[name].map((value, k) => value - less[name][k])));
    }));
  }

  /** Exact descent, the algorithm: ridge regression with momentum. */
  exact(points) {
    const lines = [[0, 0]];
    let [w, v] = [[0, 0], [0, 0]];
    for (let layer = 0; layer < this.layers; layer += 1) {
      const g = w.map((value) => this.penalty * value);
      for (const [x, y] of points) {
        const z = (w[0] + w[1] * x - y) / points.length;
        [g[0], g[1]] = [g[0] + z, g[1] + z * x];
      }
      v = v.map((value, k) => this.momentum * value - this.lr * g[k]);
      w = w.map((value, k) => value + v[k]);
      lines.push(w);
    }
    return lines;
  }

  /**
   * How far the network and this prediction may be apart by rounding: what a layer rounds, times how much the
   * layers behind it make of a change of its output. To first order, and so an estimate.
   */
  rounding(points, gone) {
    const states = this.walk(points, gone), end = states.at(-1).w;
    const size = ROUNDINGS + points.length + 2 * this.logit;
    return states.slice(1).reduce((sum, state, k) => {
      const rounded = 2 * UNIT * size * (state.terms + Math.hypot(...state.w, ...state.v));
      const most = ['w', 'v'].flatMap((name) => [0, 1].map((i) => {
        const moved = { w: [...state.w], v: [...state.v] }, nudge = NUDGE * (1 + Math.abs(moved[name][i]));
        moved[name][i] += nudge;
        const after = this.walk(points, gone, k + 1, moved).at(-1).w;
        return Math.max(...after.map((value, j) => Math.abs(value - end[j]))) / nudge;
      }));
      return sum + rounded * most.reduce((a, b) => a + b);
    }, 0);
  }
}
