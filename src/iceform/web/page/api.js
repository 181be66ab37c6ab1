// Questions to the server. A newer question of the same kind takes the place of an older one.

const RETRIES = 4; // of a question that found all workers busy
const pending = new Map();

/** Something that the user can mend, or that the server could not do. */
export class Trouble extends Error {
  constructor({ kind, message, where = null }, status) {
    super(message);
    Object.assign(this, { kind, where, status });
  }
}

/** Ask; resolves to null where a newer question has taken this one's place. */
export async function ask(name, question) {
  pending.get(name)?.abort();
  const mine = new AbortController();
  pending.set(name, mine);
  try {
    return await post(name, question, mine.signal);
  } catch (error) {
    if (error.name === 'AbortError') return null;
    throw error;
  } finally {
    if (pending.get(name) === mine) pending.delete(name);
  }
}

async function post(name, question, signal) {
  const body = JSON.stringify(question);
  for (let tries = 0; ; tries += 1) {
    const answer = await reach(`/api/${name}`, {
      method: 'POST', headers: { 'Content-Type': 'application/json' }, body, signal,
    });
    if (answer.ok) return answer.json();
    if (answer.status !== 429 || tries >= RETRIES) throw await trouble(answer);
    await pause(1000 * Number(answer.headers.get('Retry-After') || 1) * (tries + 1), signal);
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
