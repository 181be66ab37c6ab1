// The text of a program: the words that the network reads, or what is wrong and what to do about it.
// It refuses what iceform.targets.text.syntax refuses, at the same line and word. It does not run the
// program: a cell that is read too early, or an index out of range, only shows in the run.

const PIECE = /[A-Za-z]\w*\(|[,()]|[^\s,()]+/g;
const LABEL = /^[0-9]+:$/;
const NUMBER = /^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$/;
const GLUED = /^(?=.*\w)(?!<).*[-=+*/<>:].*$/;
const COMPARISONS = ['>', '<', '>=', '<=', '==', '!='];

/** What is wrong with a text: the line, from 1, the word, and what to do about it. */
export class TextTrouble extends Error {
  constructor(line, word, message) {
    super(`Line ${line}, “${word}”: ${message}`);
    Object.assign(this, { line, word });
  }
}

/** What a machine's words are; `about` is text.json. */
export class Language {
  constructor(about) {
    this.about = about;
    this.ids = new Map(about.words.map((word, token) => [word, token]));
    this.numbers = about.words.filter((_, token) => about.kinds[token] === 'number');
  }

  isOperand(word) { return this.about.kinds[this.ids.get(word)] === 'operand'; }

  /** The prompt of a text: {words, ids, lines}; `lines` says in which line each word stands, 0 for those that nobody typed. */
  prompt(text) {
    const { prefix, positions } = this.about, lines = [], program = [], words = prefix.map((word) => ({ word, line: 0 }));
    let data = false;
    text.split('\n').forEach((raw, at) => {
      const line = new Line(this, at + 1, raw.split('#')[0]);
      if (line.done) return;
      if (LABEL.test(line.word)) {
        if (data) line.fail('program lines come first, the data after them. Move this line up.');
        if (program.length && !program.at(-1).end) words.push({ word: '\n', line: program.at(-1).number });
        program.push(line.instruction(program.length + 1));
      } else {
        if (!program.length) line.fail('the text begins with a program line, such as “1: a = b + c”. Put a label before this one, or move data below the program.');
        line.data();
        data = true;
      }
      lines.push(line);
      words.push(...line.read.map((word) => ({ word, line: line.number })));
    });
    whole(program);
    written(lines);
    words.push({ word: '[1]', line: 0 });
    if (words.length >= positions) throw new TextTrouble(lines.at(-1).number, '', `the text has ${words.length} tokens, and the network ${positions} positions. Write a shorter one.`);
    return { words: words.map(({ word }) => word), ids: words.map(({ word }) => this.ids.get(word)), lines: words.map(({ line }) => line) };
  }
}

function whole(program) {
  const last = program.at(-1);
  if (!last) throw new TextTrouble(1, '', 'there is no program line. Begin with “1: a = 0 goto end”.');
  if (!last.end?.startsWith('goto')) {
    throw new TextTrouble(last.number, `${program.length}:`, 'the last line of a program goes somewhere. End it with “goto end”, or with “goto” and a label.');
  }
  for (const { number, end, target } of program) {
    if (target > program.length) throw new TextTrouble(number, end, `there is no label ${target}: this program has ${program.length}. Go to one of them, or to “end”.`);
  }
}

/** Every name that is read is written somewhere. */
function written(lines) {
  const name = (word) => word.split(/[[(]/)[0], known = new Set(lines.flatMap((line) => line.writes).map(name));
  for (const { number, reads } of lines) {
    for (const word of reads) {
      const index = /[[(]([a-z]\w*)[\])]/.exec(word)?.[1];
      const missing = [name(word), index].find((one) => one && !known.has(one));
      if (missing) throw new TextTrouble(number, word, `nothing is ever written to ${missing}. Give it a value in the data: “${missing === index || word === missing ? missing : `${missing}[0]`} = 0”.`);
    }
  }
}

/** One line, read from left to right; `read` collects its words. */
class Line {
  constructor(language, number, text) {
    Object.assign(this, { language, number, about: language.about, at: 0, read: [], reads: [], writes: [], end: null });
    const odd = [...text].find((sign) => !((sign >= ' ' && sign <= '~') || '\t\r\f\v'.includes(sign)));
    if (odd) this.fail('this sign is in no word. Use plain ASCII letters.', odd);
    this.pieces = text.match(PIECE) ?? [];
  }

  get done() { return this.at === this.pieces.length; }

  get word() { return this.pieces[this.at] ?? ''; }

  get ends() { return this.done || this.word === 'goto' || this.word === 'if'; }

  fail(message, word = this.word) { throw new TextTrouble(this.number, word, message); }

  /** Fail at the piece that was read last. */
  back(message) { this.at -= 1; this.fail(message); }

  next(wanted) {
    if (this.done) this.fail(`${wanted} is missing at the end of the line.`, this.pieces.at(-1));
    this.at += 1;
    return this.pieces[this.at - 1];
  }

  instruction(expected) {
    const label = this.next('a label');
    if (label !== `${expected}:`) this.back(`labels count 1, 2, 3, ... in order. This line is “${expected}:”.`);
    if (expected > this.about.labels) this.back(`this machine has labels up to ${this.about.labels}, and the program needs more. Use loops.`);
    this.read.push(label);
    this.destination();
    if (this.word.length > 1 && this.word.endsWith('(') && !this.atTable) this.call();
    else {
      this.operand();
      if (!this.ends) {
        this.operator();
        this.operand();
        if (!this.ends) {
          this.operator();
          this.back('a line has one operation. Put the first part on a line of its own: “t = a + b”.');
        }
      }
    }
    this.jump();
    return this;
  }

  destination() {
    const word = this.next('a destination, such as “a =”,');
    if (!this.language.isOperand(word)) this.unknown(word, 'a name to write to');
    if (this.word !== '=') this.fail(`after the destination comes “=”. Write “${word} = ...”.`, this.word || word);
    this.at += 1;
    this.writes.push(word);
    if (/\[[a-z]/.test(word)) this.reads.push(/\[(\w+)\]/.exec(word)[1]);
    this.read.push(`${word} =`);
    return word;
  }

  operator() {
    const word = this.next('an operator');
    if (['+', '-', '*'].includes(word)) { this.read.push(word); return; }
    if (word === '/') this.back('there is no division. Write “t = recip(b)” and then “a * t”.');
    if (word === '=') this.back('one “=” a line. Begin the next instruction on a line of its own.');
    if (COMPARISONS.includes(word)) this.back(`a comparison is a difference and a test of it: “t = a - b if > 0 goto 3”. Tests are ${this.about.tests.join(', ')}.`);
    if (word.startsWith('-') && word.length > 1) this.back(`an operator has a space on both sides. Write “- ${word.slice(1)}”.`);
    if (word.endsWith('(')) this.back('a function is the only operation of its line. Write “t = f(a)” before.');
    if (LABEL.test(word)) this.back('an instruction begins on a line of its own. Put a line break before it.');
    this.at -= 1;
    this.glued(word);
    this.fail('an operator belongs here (+, -, *), or “goto”, or “if”. One operation a line.');
  }

  call() {
    const word = this.next('a function'), name = word.slice(0, -1), { functions, pairs } = this.about;
    if (![...functions, ...pairs].includes(name)) this.back(`there is no function “${name}”. There are ${[...functions, ...pairs].join(', ')}.`);
    this.read.push(word);
    this.operand(true);
    if (pairs.includes(name)) {
      if (this.word !== ',') this.fail(`${name} takes two operands. Write “${name}(a, b)”.`, this.word || name);
      this.at += 1;
      this.read.push(',');
      this.operand(true);
    }
    if (this.word !== ')') this.fail('a bracket closes here. Put a sum or a product on a line of its own before, and close with “)”.', this.word || word);
    this.at += 1;
    if (!this.ends) this.fail(`nothing but “goto” or “if” follows ${name}(...). Put this on a line of its own.`);
  }

  jump() {
    if (this.done) return;
    let word = this.next('“goto”'), test = '';
    if (word === 'if') {
      test = this.next('a test');
      if (!this.about.tests.includes(test)) this.back(`a test is one of ${this.about.tests.join(', ')}: “if > 0 goto 3”.`);
      if (this.next('0') !== '0') this.back('a test compares with 0. Subtract first: “t = a - b if > 0 goto 3”.');
      word = this.next('“goto”');
    }
    if (word !== 'goto') this.back('“goto” belongs here: “if > 0 goto 3”.');
    const target = this.next('a label or “end”');
    if (!/^([1-9][0-9]*|end)$/.test(target)) this.back('after “goto” comes a label such as 3, or “end”.');
    if (Number(target) > this.about.labels) this.back(`this machine has labels 1 to ${this.about.labels}, and “end”.`);
    if (!this.done) this.fail('the jump ends the line. Put this on a line of its own.');
    Object.assign(this, { end: test ? `if ${test} 0 goto ${target}` : `goto ${target}`, target: target === 'end' ? 0 : Number(target) });
    this.read.push(this.end);
  }

  /** Whether a table of the prompt is called here. */
  get atTable() { return this.word.endsWith('(') && this.about.arrays.includes(this.word.slice(0, -1)); }

  data() {
    while (!this.done) {
      if (this.about.arrays.includes(this.word) && this.pieces[this.at + 1] === '=') { this.list(); continue; }
      const name = this.destination();
      if (/\[[a-z]/.test(name)) { this.at -= 2; this.fail(`data are written to a cell by its number. Write “${name.split('[')[0]}[0] =”.`); }
      const word = this.next('a number');
      if (!NUMBER.test(word)) this.back('the data hold numbers, such as “a = 0.25”. An instruction needs a label.');
      this.numeral(word);
      if (['+', '-', '*', '/', 'goto', 'if'].includes(this.word)) this.fail('this is an instruction without a label. Write “3: a = b + c”.');
    }
  }

  /** The cells of “F = [0, 1, 4]”. */
  list() {
    const name = this.next('a name'), { cells } = this.about;
    this.at += 1;
    if (!this.word.startsWith('[')) this.fail(`${name} is an array. Give it a list, “${name} = [0, 1, 4]”, or one cell, “${name}[0] = 1”.`, this.word || name);
    this.pieces.splice(this.at, 1, ...['[', this.word.slice(1)].filter(Boolean));
    this.at += 1;
    for (let cell = 0, closed = false; !closed; cell += 1) {
      const word = this.next('a number, or “]”,'), number = word.replace(/\]+$/, '');
      closed = word.endsWith(']');
      if (!NUMBER.test(number) || word.length - number.length > 1) this.back(`a list holds numbers with commas between: “${name} = [0, 1, 4]”.`);
      if (cell === cells) this.back(`the list has more than ${cells} numbers, and ${name} has ${cells} cells.`);
      this.writes.push(`${name}[${cell}]`);
      this.read.push(`${name}[${cell}] =`);
      this.numeral(number);
      if (!closed && this.word === ']') [this.at, closed] = [this.at + 1, true];
      else if (!closed && this.next('“,” or “]”') !== ',') this.back('between two numbers of a list there is a comma.');
    }
  }

  /** “F(x)”: a table of the prompt at the whole number nearest to x. */
  tableCall() {
    const name = this.next('a table').slice(0, -1), word = this.next(`a name, and “)”, after “${name}(”`);
    if (!this.about.scalars.includes(word)) this.back(`a table is called with a name: “${name}(x)”. Put anything else on a line of its own before, “x = ...”; a cell is “${name}[3]”.`);
    if (this.word !== ')') this.fail(`${name}(...) takes one name. Write “${name}(${word})”.`, this.word || word);
    this.at += 1;
    this.reads.push(`${name}(${word})`);
    this.read.push(`${name}(${word})`);
  }

  operand(inside = false) {
    if (this.atTable) { this.tableCall(); return; }
    const word = this.next('an operand');
    if (NUMBER.test(word)) { this.numeral(word); return; }
    if (word === '(') this.back('brackets belong to functions. Put this sum on a line of its own before.');
    if (word.endsWith('(')) this.back('a function is the only operation of its line. Write “t = f(a)” before.');
    if (inside && (word === ',' || word === ')')) this.back('an operand is missing in the brackets.');
    if (this.word === '(') this.fail(`no space before the bracket of a function. Write “${word}(”.`, word);
    if (!this.language.isOperand(word)) this.unknown(word, 'an operand');
    this.reads.push(word);
    this.read.push(word);
  }

  numeral(word) {
    if (/e/i.test(word)) this.back('numbers have no exponent. Write a decimal, such as 0.25 or 100.');
    const far = (one) => Math.abs(Number(one) - Number(word)), { numbers } = this.language;
    if (!numbers.includes(word)) this.back(`this number is no word of the machine. The nearest is ${numbers.reduce((best, one) => (far(one) < far(best) ? one : best))}.`);
    this.read.push(word);
  }

  unknown(word, wanted) {
    const { scalars, arrays, indices, cells } = this.about;
    this.at -= 1;
    const cell = /^([A-Za-z]\w*)\[([^\]]*)\]$/.exec(word);
    if (cell && arrays.includes(cell[1])) this.fail(`an index is one of ${indices.join(', ')} or a number from 0 to ${cells - 1}. Compute it on a line of its own: “i = a + b”.`);
    this.glued(word);
    if (['goto', 'if', 'end', '='].includes(word)) this.fail(`${wanted} belongs here. Write “3: a = b + c goto 2”.`);
    if (arrays.includes(word)) this.fail(`${word} is an array. Name a cell, “${word}[0]” or “${word}[i]”, or “${word}(x)”.`);
    this.fail(`this is no word of the machine where ${wanted} belongs. Names are ${scalars[0]} to ${scalars.at(-1)}, arrays ${arrays[0]} to ${arrays.at(-1)}.`);
  }

  /** Refuse a word that is several: spaces are missing. */
  glued(word) {
    if (/^-[A-Za-z]/.test(word)) this.fail(`a negative name is a difference. Write “0 - ${word.slice(1)}”.`);
    if (GLUED.test(word)) this.fail(`spaces are missing. Write “${word.split(/([=+*/<>:-])/).filter(Boolean).join(' ').replace(' :', ':')}”.`);
  }
}
