// Plots by plotly.js; loaded when the first one is drawn.

import { unpacked } from './runtime.js';

let loading = null;

async function load() {
  const script = document.createElement('script');
  script.src = URL.createObjectURL(new Blob([await unpacked('plotly.js.gz')], { type: 'text/javascript' }));
  await new Promise((resolve, reject) => {
    Object.assign(script, { onload: resolve, onerror: () => reject(new Error('plotly.js could not be loaded')) });
    document.head.append(script);
  });
  URL.revokeObjectURL(script.src);
  return window.Plotly;
}

function plotly() {
  loading ??= load();
  return loading;
}

/** Colours of the theme. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ['ink', 'quiet', 'line', 'card', 'accent', 'first', 'second', 'exact', 'bad'];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Draw into a node; axes and margins are the same everywhere. */
export async function plot(node, data, layout) {
  const Plotly = await plotly();
  if (!node.isConnected) return;
  const { ink, line } = colours();
  const keyed = data.filter((trace) => trace.name).length > 1;
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, exponentformat: 'power' };
  await Plotly.react(node, data, {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
    font: { color: ink, family: 'system-ui, sans-serif', size: 13 },
    margin: { l: 56, r: 14, t: layout.title ? 34 : 12, b: keyed ? 84 : 46 },
    showlegend: keyed,
    legend: { orientation: 'h', yref: 'container', y: 0, yanchor: 'bottom', x: 0 },
    hoverlabel: { align: 'left' },
    ...layout,
    title: layout.title && { text: layout.title, font: { size: 14 }, x: 0, xanchor: 'left', xref: 'paper' },
    xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
  }, { displaylogo: false, responsive: true, displayModeBar: false });
}

/** From blue over the card's colour to orange; zero is in the middle. */
export function diverging() {
  const { first, card, second } = colours();
  return [[0, first], [0.5, card], [1, second]];
}

/** From the card's colour to the accent. */
export function rising() {
  const { card, accent } = colours();
  return [[0, card], [1, accent]];
}
