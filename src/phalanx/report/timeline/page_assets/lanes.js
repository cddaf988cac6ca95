// ---- lanes -----------------------------------------------------------------------------------

let rows = []; // what is drawn, from top to bottom
let rowOfRank; // rank -> its first row
let folding = false;
const unfolded = new Set(); // folds that the user opened while the others are folded
const lanes = new Map();

/** The threads in which a rank makes calls, its own first, as places in `run.threads`. */
function threadsOf(rank) {
  if (!("type" in run.columns.thread)) return [run.columns.thread.all];
  const found = new Set(calls.thread.subarray(run.offsets[rank], run.offsets[rank + 1]));
  return found.size ? [...found].sort((a, b) => a - b) : [0];
}

/** What a thread is called: numbers of the system mean nothing to a reader, so those that the
 *  rank started are counted. */
function threadName(rank, thread) {
  const number = run.threads[thread];
  if (number === 0) return "own";
  if (number === 1) return "callbacks";
  if (number < 0) return "not known";
  return String(threadsOf(rank).filter((each) => run.threads[each] > 1).indexOf(thread) + 1);
}

/** Calls in ascending order of `times`, and how far those up to each one reach. */
function ordered(list, times, ends) {
  const found = Int32Array.from(list);
  for (let n = 1; n < found.length; n++)
    if (times[found[n]] < times[found[n - 1]]) {
      found.sort((a, b) => times[a] - times[b]);
      break;
    }
  const reach = new Int32Array(found.length);
  for (let n = 0, most = -1; n < found.length; n++) reach[n] = most = Math.max(most, ends[found[n]]);
  return { list: found, reach, times, ends };
}

function laneOf(rank, thread) {
  const key = rank * run.threads.length + thread;
  let lane = lanes.get(key);
  if (lane) return lane;
  const bars = [], flights = [], sends = [];
  for (let call = run.offsets[rank]; call < run.offsets[rank + 1]; call++) {
    if (calls.thread[call] !== thread) continue;
    if (calls.begin[call] >= 0) bars.push(call);
    if (calls.asynchronous[call]) flights.push(call);
    if (isMessage(call) && run.sending[calls.op[call]]) sends.push(call);
  }
  lane = {
    bars: ordered(bars, calls.begin, calls.end),
    flights: ordered(flights, calls.start, calls.shut),
    sends: ordered(sends, calls.start, calls.shut),
  };
  lanes.set(key, lane);
  return lane;
}

function layRows() {
  rows = [];
  rowOfRank = new Int32Array(run.ranks).fill(-1);
  const addRank = (rank, fold, alike) => {
    threadsOf(rank).forEach((thread, nth) => {
      if (nth === 0) for (const each of alike) rowOfRank[each] = rows.length;
      const name = alike.length > 1 ? `[${rankText(alike)}]` : `rank ${rank}`;
      const called = threadName(rank, thread), what = called > 0 ? `thread ${called}` : called;
      rows.push({ rank, thread, fold, alike, first: nth === 0, label: nth ? what : name });
    });
  };
  if (folding)
    run.folds.forEach((ranks, fold) => {
      if (unfolded.has(fold)) for (const rank of ranks) addRank(rank, fold, [rank]);
      else addRank(ranks[0], fold, ranks);
    });
  else for (let rank = 0; rank < run.ranks; rank++) addRank(rank, -1, [rank]);
  view.rowHeight = rows.length <= 12 ? 34 : rows.length <= 28 ? 24 : 16;
  placeVerdicts();
}

function setFolding(on) {
  folding = on;
  unfolded.clear();
  refold();
}

function refold() {
  layRows();
  byId("fold").setAttribute("aria-pressed", folding);
  resize();
}

function toggleFold(row) {
  if (!row || row.fold < 0 || run.folds[row.fold].length < 2) return;
  if (unfolded.has(row.fold)) unfolded.delete(row.fold);
  else unfolded.add(row.fold);
  refold();
}

/** The row that shows a call: its own, or that of the rank which stands for its fold. */
function rowOfCall(call) {
  const rank = rankOf(call);
  const first = rowOfRank[rank];
  for (let row = first; row < rows.length && rows[row].rank === rows[first].rank; row++)
    if (rows[row].thread === calls.thread[call]) return row;
  return first;
}

/** A call that is in sight in place of this one, where its rank is folded away. */
function shown(call) {
  const rank = rankOf(call);
  const shows = rows[rowOfRank[rank]].rank;
  if (shows === rank) return call;
  const other = isMessage(call) ? -1 : memberOf(shows, call);
  return other >= 0 ? other : Math.min(call - run.offsets[rank] + run.offsets[shows], run.offsets[shows + 1] - 1);
}

// ---- the view --------------------------------------------------------------------------------

const RULER = 22;
const view = { from: 0, to: 1, top: 0, width: 0, height: 0, label: 130, rowHeight: 24, rate: 1 };
let canvas, pen, picture; // picture: one line of pixels, for what is narrower than a pixel

function resize() {
  const box = canvas.getBoundingClientRect();
  view.rate = window.devicePixelRatio || 1;
  view.width = Math.max(200, box.width - 2);
  view.label = view.width < 700 ? 84 : 130;
  const most = document.documentElement.dataset.layout === "inline" ? 320 : Math.max(180, window.innerHeight * 0.6);
  view.height = Math.round(clamp(rows.length * view.rowHeight + RULER + 4, 90, most));
  canvas.style.height = `${view.height + 2}px`;
  canvas.width = Math.round(view.width * view.rate);
  canvas.height = Math.round(view.height * view.rate);
  const columns = Math.max(1, Math.round(chart() * view.rate));
  picture = new OffscreenCanvas(columns, 1);
  picture.pen = picture.getContext("2d");
  picture.image = picture.pen.createImageData(columns, 1);
  picture.words = new Uint32Array(picture.image.data.buffer);
  setTop(view.top);
  drawMinimapBase();
  redraw();
}

const chart = () => view.width - view.label; // width of the part that shows time
const scale = () => chart() / (view.to - view.from);
const xOf = (time) => view.label + (time - view.from) * scale();
const timeAt = (x) => view.from + (x - view.label) / scale();
const yOf = (row) => RULER + row * view.rowHeight - view.top;
const rowAt = (y) => (y < RULER ? -1 : Math.floor((y - RULER + view.top) / view.rowHeight));

function setTop(top) {
  view.top = clamp(top, 0, Math.max(0, rows.length * view.rowHeight - (view.height - RULER - 4)));
}

function setView(from, to) {
  const whole = Math.max(run.duration - run.first, 1), edge = whole * 0.015;
  const span = clamp(to - from, Math.min(20 / run.unit, whole), whole + 2 * edge);
  view.from = clamp((from + to - span) / 2, run.first - edge, run.first + whole + edge - span);
  view.to = view.from + span;
  redraw();
}

function zoom(factor, x = view.label + chart() / 2) {
  const time = timeAt(x);
  setView(time - (time - view.from) * factor, time + (view.to - time) * factor);
}

const pan = (part) => setView(view.from + (view.to - view.from) * part, view.to + (view.to - view.from) * part);
const showWhole = () => setView(run.first - run.duration, 2 * run.duration - run.first);

/** Bring a call into sight, and leave the scale unless the call would be too small to see. */
function reveal(call) {
  const row = rowOfCall(call);
  const y = yOf(row);
  if (y < RULER) setTop(row * view.rowHeight);
  else if (y + view.rowHeight > view.height) setTop((row + 1) * view.rowHeight - view.height + RULER + 6);
  const from = calls.start[call], to = Math.max(calls.end[call], calls.shut[call]);
  if ((to - from) * scale() < 6) {
    const span = Math.max((to - from) * 12, 200 / run.unit);
    setView((from + to) / 2 - span / 2, (from + to) / 2 + span / 2);
  } else if (from < view.from || from > view.to) {
    const span = view.to - view.from;
    setView(from - span * 0.3, from + span * 0.7);
  }
  redraw();
}

// ---- drawing ---------------------------------------------------------------------------------

const FAMILIES = [
  // words in an operation's name, colours for light and dark
  ["all_to_all", "#a9528a", "#cf7db3"],
  ["reduce_scatter", "#7458ab", "#a48bdb"],
  ["scatter", "#7458ab", "#a48bdb"],
  ["gather", "#25857b", "#4fb3a7"],
  ["reduce", "#3a6cb3", "#6f9fe0"],
  ["broadcast", "#5a8a3a", "#8cbc6b"],
  ["barrier", "#77828f", "#8b97a5"],
  ["send", "#c2662b", "#e69a66"],
  ["recv", "#a8861f", "#d1b14f"],
  ["", "#55647a", "#8c9cb3"],
];
let colours; // of the theme
let pending = false;
const drawn = { milliseconds: 0, bars: 0, arrows: 0 };

function setColours() {
  const style = getComputedStyle(document.documentElement);
  const dark = document.documentElement.dataset.theme === "dark";
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  colours = { dark, paper: of("paper"), shade: of("shade"), line: of("line"), ink: of("ink"),
    soft: of("soft"), bad: of("bad"), link: of("link"), hit: dark ? "#ffd24a" : "#d99a00" };
  const paper = parts(colours.paper);
  colours.ops = run.ops.map((name) => {
    const family = FAMILIES.find(([word]) => name.includes(word));
    const solid = parts(dark ? family[2] : family[1]);
    const light = solid.map((value, n) => value * 0.36 + paper[n] * 0.64);
    const middle = solid.map((value, n) => value * 0.72 + paper[n] * 0.28);
    const full = (values) => Uint32Array.from({ length: 17 }, (_, n) => word(values, paper, n / 16));
    return { solid: full(solid), light: full(light), solidText: css(solid), lightText: css(light), middleText: css(middle),
      solidName: nameOn(solid), middleName: nameOn(middle) };
  });
  colours.hitWord = word(parts(colours.hit), paper, 1);
  const tile = new OffscreenCanvas(6, 6);
  const brush = tile.getContext("2d");
  brush.strokeStyle = dark ? "rgba(255,255,255,.34)" : "rgba(20,30,50,.3)";
  for (const shift of [-6, 0, 6]) {
    brush.moveTo(shift, 6);
    brush.lineTo(shift + 6, 0);
  }
  brush.stroke();
  colours.hatch = pen.createPattern(tile, "repeat");
}

const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const css = (values) => `rgb(${values.map(Math.round).join(" ")})`;
/** Black or white, whichever can be read better on a colour. */
function nameOn(values) {
  const [red, green, blue] = values.map((value) => (value / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#0d1117" : "#ffffff";
}

/** A colour on paper as one pixel. */
function word(values, paper, cover) {
  const mix = values.map((value, n) => Math.round(value * cover + paper[n] * (1 - cover)));
  return (255 << 24) | (mix[2] << 16) | (mix[1] << 8) | mix[0];
}

function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    draw();
  });
}

function draw() {
  const began = performance.now();
  drawn.bars = drawn.arrows = 0;
  pen.setTransform(view.rate, 0, 0, view.rate, 0, 0);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, view.width, view.height);
  const first = Math.max(0, rowAt(RULER)), last = Math.min(rows.length - 1, rowAt(view.height - 1));
  pen.save();
  pen.beginPath();
  pen.rect(view.label, RULER, chart(), view.height - RULER);
  pen.clip();
  drawGrid();
  for (let row = first; row <= last; row++) drawRow(row);
  drawMessages(first, last);
  drawVerdicts();
  drawSelection();
  pen.restore();
  drawRuler();
  drawLabels(first, last);
  drawMinimap();
  drawn.milliseconds = performance.now() - began;
  fillCallsTable();
}

/** Times at round distances, about one for each hundred pixels. */
function ticks() {
  const rough = ((view.to - view.from) / chart()) * 100 * run.unit;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = Math.max(1, [1, 2, 5, 10].find((n) => n * power >= rough) * power) / run.unit;
  const found = [];
  for (let time = Math.ceil(Math.max(0, view.from) / step) * step; time <= view.to; time += step) found.push(time);
  return found;
}

function drawGrid() {
  pen.fillStyle = colours.line;
  pen.globalAlpha = 0.5;
  for (const time of ticks()) pen.fillRect(Math.round(xOf(time)), RULER, 1, view.height);
  pen.globalAlpha = 1;
}

function drawRuler() {
  pen.fillStyle = colours.shade;
  pen.fillRect(0, 0, view.width, RULER);
  pen.fillStyle = colours.soft;
  const all = ticks();
  for (const time of all) {
    const x = xOf(time);
    if (x < view.label - 1) continue;
    pen.fillRect(Math.round(x), RULER - 5, 1, 5);
    pen.fillText(timeText(time, all[1] - all[0]), x + 4, RULER / 2);
  }
}

function drawLabels(first, last) {
  pen.fillStyle = colours.shade;
  pen.fillRect(0, RULER, view.label, view.height);
  pen.save();
  pen.beginPath();
  pen.rect(0, RULER, view.label - 4, view.height - RULER);
  pen.clip();
  const selected = selection >= 0 ? rowOfCall(selection) : -1;
  for (let n = first; n <= last; n++) {
    const row = rows[n], y = yOf(n) + view.rowHeight / 2;
    const how = row.alike.length === 1 ? calls.how[row.rank] : 0;
    pen.fillStyle = blamedRanks.has(row.rank) && row.first ? colours.bad : row.first ? colours.ink : colours.soft;
    pen.font = `${n === selected ? "600 " : ""}${view.rowHeight < 20 ? 11 : 12}px system-ui, sans-serif`;
    const sign = row.first && row.fold >= 0 && run.folds[row.fold].length > 1 ? (row.alike.length > 1 ? "▸ " : "▾ ") : "";
    let text = sign + row.label + (how === 2 && row.first ? "  ✕" : "");
    for (let most = 4; most > 0 && row.first && row.alike.length > 1 && pen.measureText(text).width > view.label - 14; most--)
      text = `${sign}[${rankText(row.alike, most)}]`;
    pen.fillText(text, row.first ? 8 : 20, y);
  }
  pen.restore();
  pen.fillStyle = colours.line;
  pen.fillRect(view.label - 1, 0, 1, view.height);
  const all = rows.length * view.rowHeight, part = view.height - RULER - 4;
  if (all > part + 1) {
    pen.fillStyle = colours.soft;
    pen.globalAlpha = 0.5;
    pen.fillRect(view.width - 5, RULER + (view.top / all) * part, 4, Math.max(12, (part / all) * part));
    pen.globalAlpha = 1;
  }
}

function drawRow(n) {
  const row = rows[n], y = yOf(n), height = view.rowHeight;
  const lane = laneOf(row.rank, row.thread);
  pen.fillStyle = colours.line;
  pen.fillRect(view.label, y + height - 1, chart(), 1);
  const room = height - 3, low = lane.flights.list.length ? Math.max(3, Math.round(room * 0.26)) : 0;
  drawSpans(lane.bars, y + 1, room - low - (low ? 1 : 0), true);
  if (low) drawSpans(lane.flights, y + 1 + room - low, low, false);
  const ended = calls.ended[row.rank];
  if (row.first && ended >= 0) {
    pen.fillStyle = calls.how[row.rank] === 2 ? colours.bad : colours.soft;
    pen.fillRect(xOf(ended), y + 2, 2, height - 5);
  }
}

/** Spans of one lane. Those that are narrower than two pixels are gathered by the column of
 *  pixels in which they begin: a few of each column say its colour and how full it is. */
function drawSpans(spans, y, height, whole) {
  const { list, reach, times, ends } = spans;
  const { from, to } = view;
  const rate = view.rate, fine = scale() * rate, narrow = 2 / fine;
  const words = picture.words;
  let used = false;
  const wide = [];
  let at = lowerBound(reach, from);
  while (at < list.length) {
    const call = list[at], begin = times[call];
    if (begin > to) break;
    if (ends[call] - begin >= narrow) {
      wide.push(call);
      at++;
      continue;
    }
    const column = Math.floor((begin - from) * fine);
    const next = firstFrom(list, times, at + 1, from + (column + 1) / fine);
    if (column >= 0 && column < words.length) {
      if (!used) words.fill(0);
      used = true;
      words[column] = blend(list, times, ends, at, next, fine, whole);
    }
    const last = list[next - 1];
    if (ends[last] - times[last] >= narrow) wide.push(last);
    at = next;
  }
  if (used) {
    picture.pen.putImageData(picture.image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture, view.label, y, chart(), height);
  }
  for (const call of wide) drawSpan(call, times[call], ends[call], y, height, whole);
}

/** The first place from `at` on whose span begins at `time` or later; near ones are cheap. */
function firstFrom(list, times, at, time) {
  let step = 1;
  while (at + step < list.length && times[list[at + step]] < time) step *= 2;
  let to = Math.min(list.length, at + step + 1);
  while (at < to) {
    const middle = (at + to) >> 1;
    if (times[list[middle]] < time) at = middle + 1;
    else to = middle;
  }
  return at;
}

function blend(list, times, ends, from, to, fine, whole) {
  if (calls.hit) for (let n = from; n < to; n++) if (calls.hit[list[n]]) return colours.hitWord;
  const step = Math.max(1, (to - from) >> 3);
  let length = 0, waits = 0, longest = -1, longestCall = list[from], looked = 0;
  for (let n = from; n < to; n += step, looked++) {
    const call = list[n], lasts = ends[call] - times[call];
    length += lasts;
    if (whole) waits += calls.turn[call] - times[call];
    if (lasts > longest) {
      longest = lasts;
      longestCall = call;
    }
  }
  const filled = clamp((length / looked) * (to - from) * fine, 0, 1);
  const cover = (7 + 9 * filled) * (calls.hit ? 0.3 : 1); // in sixteenths
  const colour = colours.ops[calls.op[longestCall]];
  return (whole && waits * 2 > length ? colour.light : colour.solid)[Math.round(cover)];
}

function drawSpan(call, begin, end, y, height, whole) {
  drawn.bars++;
  const left = Math.max(view.label - 2, xOf(begin)), right = Math.min(view.width + 2, xOf(end));
  const colour = colours.ops[calls.op[call]];
  if (calls.hit) pen.globalAlpha = calls.hit[call] ? 1 : 0.25;
  if (!whole) {
    pen.fillStyle = calls.met[call] >= 0 ? colour.solidText : colour.lightText;
    pen.fillRect(left, y, right - left, height);
  } else {
    const turn = clamp(xOf(calls.turn[call]), left, right);
    if (turn > left) {
      pen.fillStyle = colour.lightText;
      pen.fillRect(left, y, turn - left, height);
      if (turn - left > 8) {
        pen.fillStyle = colours.hatch;
        pen.fillRect(left, y, turn - left, height);
      }
    }
    const done = calls.done[call] < 0 ? right : clamp(xOf(calls.done[call]), turn, right);
    pen.fillStyle = colour.middleText;
    if (right > done) pen.fillRect(done, y, right - done, height);
    pen.fillStyle = colour.solidText;
    if (right > turn) pen.fillRect(turn, y, Math.max(1, done - turn), height);
    pen.fillRect(left, y, 1.5, height); // where it begins
    if (right - left > 44 && height > 9) drawName(call, [left, turn, done, right], y, height);
  }
  if (calls.hit && calls.hit[call]) outline(left, y, right - left, height, colours.hit, 2);
  pen.globalAlpha = 1;
}

/** The name of the operation, in the part of the bar that has more room for it. */
function drawName(call, [left, turn, done, right], y, height) {
  pen.font = `${height < 15 ? 10.5 : 12}px system-ui, sans-serif`;
  const text = opOf(call), wide = pen.measureText(text).width + 10;
  const waits = turn - left >= Math.min(wide, right - turn);
  const [from, to] = waits ? [left, turn] : [turn, right];
  if (to - from < 30) return;
  pen.save();
  pen.beginPath();
  pen.rect(from, y, to - from - 2, height);
  pen.clip();
  if (waits) {
    pen.fillStyle = colours.ops[calls.op[call]].lightText;
    pen.fillRect(from + 3, y + height / 2 - 7, wide - 6, 14);
  }
  const { solidName, middleName } = colours.ops[calls.op[call]];
  pen.fillStyle = waits ? colours.ink : 2 * (done - turn) > Math.min(wide, right - turn) ? solidName : middleName;
  pen.fillText(text, from + 5, y + height / 2 + 0.5);
  pen.restore();
}

function outline(x, y, width, height, colour, thick) {
  pen.strokeStyle = colour;
  pen.lineWidth = thick;
  pen.strokeRect(x, y, Math.max(3, width), height);
}

function arrow(x0, y0, x1, y1, bend = 0) {
  const middleX = (x0 + x1) / 2 + bend, middleY = (y0 + y1) / 2;
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.quadraticCurveTo(middleX, middleY, x1, y1);
  const angle = Math.atan2(y1 - middleY, x1 - middleX), size = 5 + pen.lineWidth;
  for (const turn of [2.7, -2.7]) {
    pen.moveTo(x1, y1);
    pen.lineTo(x1 + size * Math.cos(angle + turn), y1 + size * Math.sin(angle + turn));
  }
  pen.stroke();
}

const middleOf = (row) => yOf(row) + view.rowHeight / 2 - 1;

function drawMessages(first, last) {
  const MOST = 1500;
  let count = 0;
  const found = [];
  for (let n = first; n <= last; n++) {
    const { list, reach, times } = laneOf(rows[n].rank, rows[n].thread).sends;
    const from = lowerBound(reach, view.from), to = firstFrom(list, times, from, view.to);
    count += to - from;
    if (count > MOST) break;
    for (let at = from; at < to; at++) if (calls.partner[list[at]] >= 0) found.push([list[at], n]);
  }
  run.crowded = count > MOST;
  if (run.crowded) return;
  pen.lineWidth = 1;
  for (const [call, n] of found) {
    const other = calls.partner[call], row = rowOfCall(other);
    if (row === n) continue;
    pen.strokeStyle = colours.ops[calls.op[call]].solidText;
    pen.globalAlpha = calls.hit && !calls.hit[call] && !calls.hit[other] ? 0.2 : 0.85;
    const comes = calls.done[other] >= 0 ? calls.done[other] : calls.met[other];
    arrow(xOf(calls.start[call]), middleOf(n), xOf(comes), middleOf(row));
    drawn.arrows++;
  }
  pen.globalAlpha = 1;
}

