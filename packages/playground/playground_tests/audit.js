// What a person who cannot see, point or read small print would stumble over, as a list of lines.
() => {
  const found = [];
  const shown = (node) => node.checkVisibility() && node.getClientRects().length > 0;
  const say = (node, what) => found.push(`${what}: <${node.tagName.toLowerCase()}${node.id ? ` id=${node.id}` : ''}> ${node.textContent.trim().slice(0, 40)}`);

  const named = (node) => node.getAttribute('aria-label') || node.labels?.[0]?.textContent.trim()
    || document.getElementById(node.getAttribute('aria-labelledby'))?.textContent.trim()
    || (node.matches('button, a') && node.textContent.trim());
  for (const node of document.querySelectorAll('button, a[href], input, select, textarea, [role=tabpanel], [role=img], [tabindex]')) {
    if (shown(node) && !named(node)) say(node, 'no name');
  }
  for (const node of document.querySelectorAll('img')) if (!node.hasAttribute('alt')) say(node, 'no alt');

  const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => found.push(`id twice: ${id}`));
  for (const name of ['aria-describedby', 'aria-controls', 'aria-labelledby']) {
    for (const node of document.querySelectorAll(`[${name}]`)) {
      if (!document.getElementById(node.getAttribute(name))) say(node, `${name} names nothing`);
    }
  }

  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  for (const node of document.querySelectorAll('p, dt, dd, li, label, legend, button, a, h1, h2, output, th, td, caption, code, span, option')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !shown(node) || node.closest('.dim, :disabled, .busy, svg')) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(parse(style.color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) say(node, `contrast ${ratio.toFixed(2)}`);
    if (parseFloat(style.fontSize) < 12) say(node, `${style.fontSize} is small`);
  }

  for (const node of document.querySelectorAll('button, select, input')) {
    const box = node.getBoundingClientRect();
    if (shown(node) && Math.min(box.width, box.height) < 24) say(node, `a target of ${box.width} x ${box.height}`);
  }
  const levels = [...document.querySelectorAll('h1, h2, h3')].map((node) => Number(node.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) found.push('there must be one h1');
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) found.push(`a heading skips to h${level}`); });
  if (!document.documentElement.lang) found.push('no language');
  if (document.documentElement.scrollWidth > innerWidth) found.push(`the page is ${document.documentElement.scrollWidth} wide, the window ${innerWidth}`);
  return found;
}
