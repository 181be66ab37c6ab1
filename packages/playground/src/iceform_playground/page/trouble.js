// What can go wrong, as the page says it.

/** Something that the user can mend, or that the engine could not do. */
export class Trouble extends Error {
  constructor({ kind, message, where = null }, status = 0) {
    super(message);
    Object.assign(this, { kind, where, status });
  }
}
