// Questions, and the engine that answers them: a server, or this page itself.
// A newer question of the same kind takes the place of an older one.

export { Trouble } from './trouble.js';

const alone = document.documentElement.dataset.engine === 'page';
const engine = await import(alone ? './engine.js' : './server.js');
const pending = new Map();

/** Whether the page computes by itself; what is too heavy for that needs `iceform play`. */
export const standsAlone = alone;

/** Ask; resolves to null where a newer question has taken this one's place. */
export async function ask(name, question) {
  pending.get(name)?.abort();
  const mine = new AbortController();
  pending.set(name, mine);
  try {
    return await engine.answer(name, question, mine.signal);
  } catch (error) {
    if (error.name === 'AbortError') return null;
    throw error;
  } finally {
    if (pending.get(name) === mine) pending.delete(name);
  }
}

/** What the page offers. */
export const catalogue = () => engine.catalogue();

/** Wait until questions can be answered; `waiting` is called once where they cannot be yet. */
export const awake = (waiting) => engine.awake(waiting);
