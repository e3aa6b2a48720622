// Making and changing elements. Text is always text, never markup.

export const find = (selector, root = document) => root.querySelector(selector);

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name === "style") setStyle(element, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** One property after the other, which the policy allows; the attribute it does not. */
function setStyle(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, value);
}

/** Only what changed is touched, so that selections and tooltips live on. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

/** The children of `parent` become one for each item, in order; `key` tells items apart. */
export function reconcile(parent, items, key, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, position) => {
    const id = String(key(item));
    let child = known.get(id);
    known.delete(id);
    if (!child) {
      child = create(item);
      child.dataset.key = id;
    }
    update(child, item);
    if (parent.children[position] !== child) parent.insertBefore(child, parent.children[position] ?? null);
  });
  for (const gone of known.values()) gone.remove();
}

/**
 * Columns are {title, cell(item) → text or {text, …}, class, wide}. A cell may have `tone`
 * (good, warn, bad, muted), `bar` (0..1 behind the text) and `title`.
 */
export function table(element, columns, items, key, empty) {
  if (!element.tHead) {
    const titles = columns.map((c) => make("th", { class: classes(c), scope: "col" }, c.title));
    element.append(make("thead", {}, make("tr", {}, ...titles)), make("tbody"));
  }
  const rows = items.length ? items : [null];
  const id = (item) => (item === null ? "(none)" : key(item));
  const create = (item) => (item === null ? emptyRow(columns, empty) : row(columns));
  reconcile(element.tBodies[0], rows, id, create, (tr, item) => {
    if (item !== null) columns.forEach((column, i) => setCell(tr.cells[i], column, column.cell(item)));
  });
}

function row(columns) {
  return make("tr", {}, ...columns.map(() => make("td", {}, make("span"))));
}

function emptyRow(columns, text) {
  return make("tr", {}, make("td", { colspan: columns.length, class: "empty" }, text));
}

function setCell(td, column, value) {
  const cell = typeof value === "object" ? value : { text: value };
  const [text] = td.children;
  setText(text, String(cell.text));
  setClass(td, [classes(column), cell.tone, cell.bar == null ? "" : "barred"].filter(Boolean).join(" "));
  if (cell.bar != null) text.style.setProperty("--part", `${Math.round(100 * Math.min(1, cell.bar))}%`);
  if (cell.title) td.title = cell.title;
}

function classes(column) {
  return [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ");
}
