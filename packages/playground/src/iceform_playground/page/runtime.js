// The site's files, onnxruntime-web, and digests of weights.

import { Trouble } from './trouble.js';

const RUNTIME = ['ort.js', 'ort-wasm.js', 'ort.wasm.gz']; // onnxruntime-web

const here = (name) => new URL(name, import.meta.url).href;
const unreachable = (message) => new Trouble({ kind: 'unreachable', message });

/** A file of the site; where it cannot be had, one sentence that says what to do. */
export async function file(name) {
  let reply = null;
  try {
    reply = await fetch(here(name));
  } catch { /* said below */ }
  if (!reply?.ok) {
    const why = reply ? `the host answers ${reply.status}` : 'it was blocked, or the host does not answer';
    throw unreachable(`${name} could not be loaded (${why}): reload the page and let it load its own files`);
  }
  return reply;
}

/** JSON of a file. */
export const json = async (name) => (await file(name)).json();

/** Bytes of a file that is stored compressed; some hosts have it unpacked on the way. */
export async function unpacked(name) {
  const bytes = new Uint8Array(await (await file(name)).arrayBuffer());
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** JSON of a file that is stored compressed. */
export const unpackedJson = async (name) => JSON.parse(new TextDecoder().decode(await unpacked(name)));

function checkBrowser() {
  const missing = typeof WebAssembly !== 'object' ? 'WebAssembly' : typeof DecompressionStream !== 'function' ? 'DecompressionStream'
    : typeof crypto?.subtle !== 'object' ? 'WebCrypto (which needs https or localhost)' : null;
  if (missing) throw unreachable(`This browser has no ${missing}: open the page in a current one, with WebAssembly allowed`);
}

let loading = null;

/** onnxruntime-web, loaded once. */
export function runtime() {
  loading ??= load();
  return loading;
}

async function load() {
  checkBrowser();
  const [script, worker, binary] = RUNTIME;
  const ort = await import(here(script)).catch(async (error) => {
    await file(script); // says what to do, where the import only fails
    throw error;
  });
  Object.assign(ort.env.wasm, { numThreads: 1, wasmBinary: (await unpacked(binary)).buffer, wasmPaths: { mjs: here(worker) } });
  return ort;
}

/** SHA-256, in hexadecimal digits, of texts and of places [first byte, how many] in `weights`. */
export async function digestOf(parts, weights) {
  const text = new TextEncoder();
  const bytes = parts.map((part) => (typeof part === 'string' ? text.encode(part) : weights.subarray(part[0], part[0] + part[1])));
  const sum = await crypto.subtle.digest('SHA-256', await new Blob(bytes).arrayBuffer());
  return [...new Uint8Array(sum)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Lets the page draw and listen between two runs; a timer would wait for milliseconds. */
export const breath = () => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); resolve(); };
  port2.postMessage(null);
});
