// The engine of a page that `iceform play` serves: questions go to the server.

import { Trouble } from './trouble.js';

const RETRIES = 4; // of a question that found all workers busy

/** The answer to a question; aborted where a newer one takes its place. */
export async function answer(name, question, signal) {
  const body = JSON.stringify(question);
  for (let tries = 0; ; tries += 1) {
    const reply = await reach(`/api/${name}`, {
      method: 'POST', headers: { 'Content-Type': 'application/json' }, body, signal,
    });
    if (reply.ok) return reply.json();
    if (reply.status !== 429 || tries >= RETRIES) throw await trouble(reply);
    await pause(1000 * Number(reply.headers.get('Retry-After') || 1) * (tries + 1), signal);
  }
}

/** What the page offers. */
export async function catalogue() {
  const answer = await reach('/api/catalogue', {});
  if (!answer.ok) throw await trouble(answer);
  return answer.json();
}

/** Wait until a worker is up; `waiting` is called once where none is yet. */
export async function awake(waiting) {
  for (let asked = 0; ; asked += 1) {
    const answer = await reach('/api/health', {});
    if (!answer.ok) throw await trouble(answer);
    if ((await answer.json()).workers_ready > 0) return;
    if (asked === 0) waiting();
    await new Promise((resolve) => { setTimeout(resolve, 500); });
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    const message = 'The server does not answer; start it again with: iceform play';
    throw new Trouble({ kind: 'unreachable', message }, 0);
  }
}

async function trouble(answer) {
  const said = await answer.json().catch(() => null);
  const error = said?.error ?? { kind: 'unknown', message: `The server answered ${answer.status}` };
  return new Trouble(error, answer.status);
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(new DOMException('replaced', 'AbortError'));
    });
  });
}
