"use strict";
// The page of a run. The files of this folder follow each other in one script:
//   run.js       small tools; reads the data
//   lanes.js     which lanes there are, which part of them is in sight, and their picture
//   marks.js     verdicts, the selected call and what belongs to it
//   panel.js     the selected call in words, search
//   input.js     minimap, mouse and keys
//   pictures.js  the tables and the other pictures; the start
//
// Texts of a run are shown by textContent and fillText only: they are never markup.
// A call is its place in the columns, which hold the calls of all ranks one after another.

// ---- small tools ---------------------------------------------------------------------------

const byId = (id) => document.getElementById(id);
const clamp = (value, least, most) => Math.max(least, Math.min(most, value));
const many = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function shape(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const link = (text, onclick) => element("button", { type: "button", class: "link", onclick }, text);

function table(heads, rows, numeric = []) {
  const cell = (tag, text, place) =>
    element(tag, numeric.includes(place) ? { class: "n" } : {}, text);
  return element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((text, n) => cell("th", text, n)))),
    element("tbody", {}, ...rows.map((row) =>
      element("tr", {}, ...row.map((text, n) => cell("td", text, n))))));
}

/** Ranks as text: runs as ranges, cut where there are too many. */
function rankText(ranks, most = 8) {
  const parts = [];
  for (let from = 0; from < ranks.length;) {
    let to = from;
    while (to + 1 < ranks.length && ranks[to + 1] === ranks[to] + 1) to++;
    parts.push(to > from + 1 ? `${ranks[from]}-${ranks[to]}` : ranks.slice(from, to + 1).join(", "));
    from = to + 1;
  }
  return parts.length > most
    ? `${parts.slice(0, most).join(", ")}, ... (${ranks.length})` : parts.join(", ");
}

const ranksText = (ranks) => (ranks.length === 1 ? "rank " : "ranks ") + rankText(ranks);

/** A time with four digits, or with as many as tell times apart that are `step` away. */
function timeText(ticks, step = 0) {
  const ns = ticks * run.unit;
  const [size, word] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([least]) => Math.abs(ns) >= least) ?? [1, "ns"];
  if (step) return `${(ns / size).toFixed(clamp(Math.ceil(Math.log10(size / (step * run.unit)) - 1e-9), 0, 9))} ${word}`;
  return `${Number((ns / size).toPrecision(4))} ${word}`;
}

function bytesText(bytes) {
  for (const [size, word] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (bytes >= size) return `${Number((bytes / size).toPrecision(3))} ${word}`;
  return `${bytes} B`;
}

/** The first place in an ascending array whose value is at least `value`. */
function lowerBound(values, value, from = 0, to = values.length) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

// ---- reading the data ------------------------------------------------------------------------

let run; // what the page is about: the JSON object of page_data.py
let calls; // its columns, times absolute, and some that follow from them

async function unpack() {
  const holder = byId("data");
  const text = holder.textContent.trim();
  holder.remove();
  let bytes;
  if (Uint8Array.fromBase64) bytes = Uint8Array.fromBase64(text);
  else {
    const letters = atob(text);
    bytes = new Uint8Array(letters.length);
    for (let n = 0; n < letters.length; n++) bytes[n] = letters.charCodeAt(n);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  run = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const base = Math.ceil((4 + length) / 8) * 8;
  const types = { b: Int8Array, h: Int16Array, i: Int32Array, d: Float64Array };
  calls = {};
  for (const [name, column] of Object.entries(run.columns)) {
    if (column.type) calls[name] = new types[column.type](buffer, base + column.at, column.n);
    else calls[name] = new (Math.abs(column.all) < 128 ? Int8Array : Float64Array)(column.n).fill(column.all);
  }
  derive();
}

/** A time from its distance to the one before it; -1 if it has not come. */
const later = (time, distance) => (distance === 0 ? -1 : distance > 0 ? time + distance - 1 : Math.max(0, time + distance));

/** Make times absolute, and say for each call what its bar and its flight are. The bar is the
 *  time in which a thread is in the call; the flight that in which an asynchronous call goes on
 *  by itself. `shut` is when nothing more came of it, `turn` when its waiting became moving. */
function derive() {
  const total = calls.start.length;
  const offsets = (run.offsets = new Int32Array(run.ranks + 1));
  for (let rank = 0; rank < run.ranks; rank++) offsets[rank + 1] = offsets[rank] + calls.count[rank];
  const { waiting, met, done, resumed } = calls;
  const made = {};
  for (const name of ["start", "waiting", "met", "done", "resumed", "begin", "end", "turn", "shut"])
    made[name] = new Int32Array(total);
  calls.open = new Uint8Array(total);
  for (let rank = 0; rank < run.ranks; rank++) {
    let now = 0;
    const last = calls.ended[rank] >= 0 ? calls.ended[rank] : run.duration;
    for (let call = offsets[rank]; call < offsets[rank + 1]; call++) {
      now += calls.start[call];
      const begin = later(now, waiting[call]);
      const meets = later(now, met[call]);
      const moved = later(meets < 0 ? now : meets, done[call]);
      const goes = later(moved >= 0 ? moved : meets >= 0 ? meets : now, resumed[call]);
      const open = meets < 0 && moved < 0 && goes < 0;
      const shut = open ? Math.max(now, last) : moved >= 0 ? moved : meets >= 0 ? meets : goes;
      const end = goes >= 0 ? goes : Math.max(shut, begin);
      made.start[call] = now;
      made.waiting[call] = begin;
      made.met[call] = meets;
      made.done[call] = moved;
      made.resumed[call] = goes;
      made.begin[call] = begin;
      made.end[call] = end;
      made.turn[call] = meets < 0 ? end : clamp(meets, begin, end);
      made.shut[call] = shut;
      calls.open[call] = open ? 1 : 0;
    }
  }
  Object.assign(calls, made);
  // Before the first call the ranks start: that is left out of the picture.
  run.first = run.duration;
  for (let rank = 0; rank < run.ranks; rank++)
    if (calls.count[rank]) run.first = Math.min(run.first, calls.start[offsets[rank]]);
  if (run.first >= run.duration) run.first = 0;
  calls.hit = null;
  calls.blame = new Uint8Array(total);
  run.sending = run.ops.map((name) => name.includes("send"));
}

const rankOf = (call) => lowerBound(run.offsets, call + 1) - 1;
const opOf = (call) => run.ops[calls.op[call]] ?? "?";
const groupOf = (call) => run.groups[calls.group[call]] ?? { name: "?", ranks: [], backend: "" };
const isMessage = (call) => calls.number[call] < 0;
const isUnmet = (call) => calls.met[call] < 0 && calls.done[call] < 0;
/** What an unmet call is: of a run that ended, its counterparts will not come any more. */
const openWord = () => (run.status === "unknown" ? "still open" : "never met");
const siteOf = (call) => run.sites[calls.site[call]] ?? null;
const sizeOf = (call) => run.tensors[calls.tensors[call]]?.bytes ?? 0;

function lineOf(call) {
  const site = siteOf(call);
  return site ? `${site[0]}:${site[1]}` : "line not known";
}

/** Ticks that a thread waited for a call: as `RankCalls.waited` has it. */
function waited(call) {
  if (calls.waiting[call] < 0) return 0;
  if (calls.resumed[call] >= 0) return calls.resumed[call] - calls.waiting[call];
  return calls.open[call] ? Math.max(0, calls.end[call] - calls.waiting[call]) : 0;
}

const slots = new Map(); // rank -> group -> calls in the order of their numbers

function slotsOf(rank) {
  let found = slots.get(rank);
  if (found) return found;
  const lists = new Map();
  for (let call = run.offsets[rank]; call < run.offsets[rank + 1]; call++) {
    if (isMessage(call)) continue;
    const group = calls.group[call];
    if (!lists.has(group)) lists.set(group, []);
    lists.get(group).push(call);
  }
  found = new Map([...lists].map(([group, list]) => [group, Int32Array.from(list)]));
  slots.set(rank, found);
  return found;
}

/** The call of `rank` in the slot of `call`; -1 if it never came. */
function memberOf(rank, call) {
  const list = slotsOf(rank).get(calls.group[call]);
  if (!list) return -1;
  const number = calls.number[call];
  let from = 0, to = list.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    if (calls.number[list[middle]] < number) from = middle + 1;
    else to = middle;
  }
  return from < list.length && calls.number[list[from]] === number ? list[from] : -1;
}

