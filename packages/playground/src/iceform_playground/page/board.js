// The board: points that can be drawn, and the fit on top of them.

import { byId, svg } from './dom.js';
import { contour, onMesh } from './model.js';
import { snap } from './state.js';

const SIZE = 600;
const NEAR = 0.05; // how near a click must be to a point to mean it
const APART = 0.06; // of points that are drawn in one stroke
const STRIDE = 0.05; // of the keyboard's cross
const MESH = 82;

const toX = (x) => ((x + 1) / 2) * SIZE;
const toY = (y) => ((1 - y) / 2) * SIZE;

/**
 * @param {{points: () => Array, change: (points: Array) => void, tool: () => string,
 *   setTool: (tool: string) => void, most: () => number, full: () => void}} host
 */
export class Board {
  constructor(host) {
    this.host = host;
    this.root = byId('board');
    this.canvas = byId('plane');
    this.cross = [0, 0];
    this.held = null;
    this.last = null;
    this.layers = {};
    for (const name of ['axes', 'fit', 'points', 'cross']) {
      this.layers[name] = svg('g');
      this.root.append(this.layers[name]);
    }
    this.drawAxes();
    this.drawCross();
    this.root.addEventListener('pointerdown', (event) => this.press(event));
    this.root.addEventListener('pointermove', (event) => this.drag(event));
    for (const name of ['pointerup', 'pointercancel']) {
      this.root.addEventListener(name, () => { this.held = this.last = null; });
    }
    this.root.addEventListener('keydown', (event) => this.key(event));
  }

  // ------------------------------------------------------------------------------ drawing points

  place(event) {
    const box = this.root.getBoundingClientRect();
    return [
      snap((2 * (event.clientX - box.left)) / box.width - 1),
      snap(1 - (2 * (event.clientY - box.top)) / box.height),
    ];
  }

  nearest(x, y) {
    let best = -1, least = Infinity;
    this.host.points().forEach((point, i) => {
      const distance = Math.hypot(point.x - x, point.y - y);
      if (distance < least) [best, least] = [i, distance];
    });
    return { index: best, distance: least };
  }

  press(event) {
    event.preventDefault();
    this.root.focus({ preventScroll: true });
    this.root.setPointerCapture(event.pointerId);
    const [x, y] = this.place(event);
    const { index, distance } = this.nearest(x, y);
    if (this.host.tool() === 'erase') {
      this.last = [x, y];
      this.erase(x, y);
    } else if (distance < NEAR) {
      this.held = index;
    } else {
      this.last = [x, y];
      this.add(x, y);
    }
  }

  drag(event) {
    if (this.held === null && this.last === null) return;
    const [x, y] = this.place(event);
    if (this.held !== null) {
      this.host.change(this.host.points().map((p, i) => (i === this.held ? { ...p, x, y } : p)));
    } else if (this.host.tool() === 'erase') {
      this.erase(x, y);
    } else if (Math.hypot(x - this.last[0], y - this.last[1]) > APART) {
      this.last = [x, y];
      this.add(x, y);
    }
  }

  add(x, y) {
    const points = this.host.points();
    if (points.length >= this.host.most()) {
      this.host.full();
      return;
    }
    const group = this.host.tool() === '1' ? 1 : 0;
    this.host.change([...points, { x, y, group }]);
  }

  erase(x, y) {
    const { index, distance } = this.nearest(x, y);
    if (distance < NEAR) this.host.change(this.host.points().filter((_, i) => i !== index));
  }

  key(event) {
    const [x, y] = this.cross;
    const moves = { ArrowLeft: [-STRIDE, 0], ArrowRight: [STRIDE, 0], ArrowUp: [0, STRIDE], ArrowDown: [0, -STRIDE] };
    if (moves[event.key]) {
      const [dx, dy] = moves[event.key];
      this.cross = [snap(x + dx), snap(y + dy)];
      this.drawCross();
    } else if (event.key === 'Enter' || event.key === ' ') {
      this.add(x, y);
    } else if (event.key === 'Delete' || event.key === 'Backspace') {
      const { index } = this.nearest(x, y);
      this.host.change(this.host.points().filter((_, i) => i !== index));
    } else if (event.key === 'g' || event.key === 'G') {
      this.host.setTool(this.host.tool() === '0' ? '1' : '0');
    } else {
      return;
    }
    event.preventDefault();
  }

  // --------------------------------------------------------------------------------- the picture

  drawAxes() {
    const ticks = [-1, -0.5, 0.5, 1];
    this.layers.axes.append(
      svg('line', { class: 'axis', x1: 0, x2: SIZE, y1: toY(0), y2: toY(0) }),
      svg('line', { class: 'axis', y1: 0, y2: SIZE, x1: toX(0), x2: toX(0) }),
      ...ticks.map((t) => label(t, toX(t) + (t === 1 ? -12 : 4), toY(0) - 6)),
      ...ticks.map((t) => label(t, toX(0) + 6, toY(t) + (t === 1 ? 16 : -5))),
    );
  }

  drawCross() {
    const [x, y] = [toX(this.cross[0]), toY(this.cross[1])];
    this.layers.cross.replaceChildren(
      svg('path', { class: 'cross', d: `M${x - 14} ${y}H${x + 14}M${x} ${y - 14}V${y + 14}` }),
    );
  }

  drawPoints() {
    this.layers.points.replaceChildren(...this.host.points().map(({ x, y, group }) => {
      const [cx, cy] = [toX(x), toY(y)];
      if (!group) return svg('circle', { class: 'point g0', cx, cy, r: 6.5 });
      return svg('path', { class: 'point g1', d: `M${cx} ${cy - 8.5}l8.5 8.5-8.5 8.5-8.5-8.5z` });
    }));
    const count = this.host.points().length;
    this.root.setAttribute('aria-label', `Board of ${count} points`);
  }

  /** Curves y = f(x): the machine's, and perhaps the exact one. */
  drawCurves(machine, exact) {
    this.clearPlane();
    this.layers.fit.replaceChildren(
      ...(machine ? [svg('path', { class: 'fit', d: curve(machine), 'data-fit': 'machine' })] : []),
      ...(exact ? [svg('path', { class: 'fit exact', d: curve(exact) })] : []),
    );
  }

  /** A function of the plane: its sign or share as colours, lines at its levels. */
  drawPlane(values, { middle, levels, scale }) {
    this.shade(values, middle, scale);
    this.layers.fit.replaceChildren(
      svg('path', { class: 'fit', d: segments(contour(values, middle)), 'data-fit': 'machine' }),
      ...levels.map((level) => svg('path', { class: 'street', d: segments(contour(values, level)) })),
    );
  }

  /** A function f(x, y) on the board's own mesh. */
  mesh(f) {
    return onMesh(f, MESH);
  }

  /** Principal axes from the mean, two deviations long. */
  drawAxesOf(axes) {
    this.clearPlane();
    const [mx, my] = axes.at(-1);
    const d = axes.slice(0, -1).map(([vx, vy, s]) => {
      const ends = [-2, 2].map((k) => `${toX(mx + k * s * vx)} ${toY(my + k * s * vy)}`);
      return `M${ends[0]}L${ends[1]}`;
    });
    this.layers.fit.replaceChildren(svg('path', { class: 'fit', d: d.join(''), 'data-fit': 'machine' }));
  }

  clearFit() {
    this.clearPlane();
    this.layers.fit.replaceChildren();
  }

  clearPlane() {
    this.canvas.getContext('2d').clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  shade(values, middle, scale) {
    const count = values.length;
    Object.assign(this.canvas, { width: count, height: count });
    const context = this.canvas.getContext('2d');
    const image = context.createImageData(count, count);
    const style = getComputedStyle(document.documentElement);
    const [cold, warm] = ['--cold', '--warm'].map((name) => style.getPropertyValue(name).split(',').map(Number));
    values.forEach((row, i) => row.forEach((value, j) => {
      const share = Math.tanh((value - middle) / scale);
      const colour = share < 0 ? cold : warm;
      const at = 4 * ((count - 1 - i) * count + j);
      image.data.set([...colour, Math.round(255 * Math.abs(share))], at);
    }));
    context.putImageData(image, 0, 0);
  }
}

function label(value, x, y) {
  return svg('text', { class: 'tick', x, y }, String(value).replace('-', '−'));
}

/** A path through values at equal distances along x; what leaves the board far is cut. */
function curve(values) {
  const last = values.length - 1;
  return values.map((value, i) => {
    const y = toY(Math.max(-9, Math.min(9, value)));
    return `${i ? 'L' : 'M'}${toX(-1 + (2 * i) / last).toFixed(1)} ${y.toFixed(1)}`;
  }).join('');
}

function segments(found) {
  return found.map(([a, b, c, d]) => `M${toX(a).toFixed(1)} ${toY(b).toFixed(1)}L${toX(c).toFixed(1)} ${toY(d).toFixed(1)}`).join('');
}
