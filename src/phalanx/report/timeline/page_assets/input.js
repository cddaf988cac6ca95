// ---- minimap ---------------------------------------------------------------------------------

let map, mapPen, mapBase;

const MINIMAP_RANKS = 16;

/** How many ranks wait at each moment of the run; of many ranks, some of each. */
function drawMinimapBase() {
  const box = map.getBoundingClientRect();
  const width = (map.width = Math.max(50, Math.round(box.width * view.rate)));
  const height = (map.height = Math.round(32 * view.rate));
  mapPen = map.getContext("2d");
  const waits = new Float32Array(width), inCall = new Float32Array(width);
  const part = Math.max(1, Math.ceil(run.ranks / MINIMAP_RANKS));
  const unit = width / Math.max(1, run.duration - run.first), at = (time) => (time - run.first) * unit;
  for (let rank = 0; rank < run.ranks; rank += part)
    for (let call = run.offsets[rank]; call < run.offsets[rank + 1]; call++)
      if (calls.begin[call] >= 0) {
        spread(waits, at(calls.begin[call]), at(calls.turn[call]));
        spread(inCall, at(calls.turn[call]), at(calls.end[call]));
      }
  const lanes = Math.ceil(run.ranks / part);
  mapBase = new OffscreenCanvas(width, height);
  const brush = mapBase.getContext("2d");
  brush.fillStyle = colours.paper;
  brush.fillRect(0, 0, width, height);
  for (let x = 0; x < width; x++) {
    const high = clamp(waits[x] / lanes, 0, 1) * height, more = clamp(inCall[x] / lanes, 0, 1) * height;
    brush.fillStyle = colours.line;
    brush.fillRect(x, height - high, 1, high);
    brush.fillStyle = colours.soft;
    brush.fillRect(x, height - high - more, 1, more);
  }
  brush.fillStyle = colours.bad;
  for (const { time } of run.verdicts) if (time >= 0) brush.fillRect(at(time) - 1.5, 0, 3, height);
  for (const { time } of run.findings) brush.fillRect(at(time) - 1, 0, 2, 6 * view.rate);
}

function spread(columns, from, to) {
  const first = Math.max(0, Math.floor(from)), last = Math.min(columns.length - 1, Math.floor(to));
  if (first === last) columns[first] += to - from;
  else
    for (let x = first; x <= last; x++)
      columns[x] += Math.min(to, x + 1) - Math.max(from, x);
}

function drawMinimap() {
  const unit = map.width / Math.max(1, run.duration - run.first);
  mapPen.drawImage(mapBase, 0, 0);
  const from = Math.max(0, (view.from - run.first) * unit), to = Math.min(map.width, (view.to - run.first) * unit);
  mapPen.fillStyle = colours.paper;
  mapPen.globalAlpha = 0.6;
  mapPen.fillRect(0, 0, from, map.height);
  mapPen.fillRect(to, 0, map.width, map.height);
  mapPen.globalAlpha = 1;
  mapPen.strokeStyle = colours.link;
  mapPen.lineWidth = 2;
  mapPen.strokeRect(from + 1, 1, Math.max(3, to - from - 2), map.height - 2);
}

// ---- keys and mouse --------------------------------------------------------------------------

function listen() {
  let drag = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left - 1, event.clientY - box.top - 1];
  };
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = place(event);
    drag = { x, y, from: view.from, to: view.to, top: view.top, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (drag) {
      if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > 4) drag.moved = true;
      if (!drag.moved) return;
      canvas.classList.add("dragging");
      const by = (drag.x - x) / scale();
      setTop(drag.top + drag.y - y);
      setView(drag.from + by, drag.to + by);
      return;
    }
    const found = callAt(x, y);
    canvas.title = found >= 0 ? describe(found) : "";
    if (found !== hover) {
      hover = found;
      redraw();
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = place(event);
    canvas.classList.remove("dragging");
    if (drag && !drag.moved) {
      if (x < view.label) toggleFold(rows[rowAt(y)]);
      else select(callAt(x, y), { show: false });
    }
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => {
    hover = -1;
    redraw();
  });
  canvas.addEventListener("dblclick", (event) => {
    const found = callAt(...place(event));
    if (found < 0) return;
    const from = calls.start[found], to = Math.max(calls.end[found], calls.shut[found]), more = (to - from) * 0.5 + 1;
    setView(from - more, to + more);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x] = place(event);
    if (x < view.label && !event.ctrlKey) {
      setTop(view.top + event.deltaY);
      redraw();
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      pan((event.deltaX || event.deltaY) / 1000);
    else zoom(Math.exp(clamp(event.deltaY, -200, 200) / 350), x);
  }, { passive: false });
  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    centre(event);
  });
  map.addEventListener("pointermove", (event) => event.buttons && centre(event));
  canvas.addEventListener("keydown", onKey);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target.tagName !== "INPUT") {
      event.preventDefault();
      byId("search").focus();
    } else if (event.key === "Escape" && event.target !== canvas) canvas.focus();
  });
  const field = byId("search");
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (event) => event.key === "Enter" && stepHit(event.shiftKey ? -1 : 1));
  const on = (id, act) => byId(id).addEventListener("click", act);
  on("previous", () => stepHit(-1));
  on("next", () => stepHit(1));
  on("in", () => zoom(0.6));
  on("out", () => zoom(1 / 0.6));
  on("whole", showWhole);
  on("fold", () => setFolding(!folding));
  on("theme", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true));
  new ResizeObserver(() => canvas.getBoundingClientRect().width - 2 !== view.width && resize()).observe(canvas.parentElement);
  byId("calls").addEventListener("toggle", fillCallsTable);
}

function centre(event) {
  const box = map.getBoundingClientRect();
  const part = (event.clientX - box.left) / box.width;
  const time = run.first + part * (run.duration - run.first), half = (view.to - view.from) / 2;
  setView(time - half, time + half);
}

const KEYS = {
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: showWhole,
  n: () => stepHit(1), p: () => stepHit(-1), f: () => setFolding(!folding),
  Enter: () => select(selection, { focus: true }), Escape: () => select(-1),
  " ": () => toggleFold(rows[selection >= 0 ? rowOfCall(selection) : rowAt(RULER)]),
  v: nextOfVerdict, c: toCounterpart,
  ArrowLeft: () => stepCall(-1), ArrowRight: () => stepCall(1),
  ArrowUp: () => stepRow(-1), ArrowDown: () => stepRow(1),
  Home: () => toEdge(false), End: () => toEdge(true),
};
const SHIFTED = {
  ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
  ArrowUp: () => (setTop(view.top - 3 * view.rowHeight), redraw()),
  ArrowDown: () => (setTop(view.top + 3 * view.rowHeight), redraw()),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = (event.shiftKey && SHIFTED[event.key]) || KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function someCall() {
  const row = rows[Math.max(0, rowAt(RULER))];
  return row ? nearest(row, (view.from + view.to) / 2) : -1;
}

/** The call of a row that was made at `time`, or the one nearest to it. */
function nearest(row, time) {
  const from = run.offsets[row.rank], to = run.offsets[row.rank + 1];
  let at = lowerBound(calls.start, time, from, to);
  if (at > from && (at === to || time - calls.start[at - 1] < calls.start[at] - time)) at--;
  for (let away = 0; away < to - from; away++)
    for (const call of [at - away, at + away])
      if (call >= from && call < to && calls.thread[call] === row.thread) return call;
  return -1;
}

function stepCall(by) {
  if (selection < 0) return select(someCall());
  const rank = rankOf(selection);
  let call = selection + by;
  while (call >= run.offsets[rank] && call < run.offsets[rank + 1] && calls.thread[call] !== calls.thread[selection]) call += by;
  if (call >= run.offsets[rank] && call < run.offsets[rank + 1]) select(call);
}

function stepRow(by) {
  if (selection < 0) return select(someCall());
  for (let row = rowOfCall(selection) + by; row >= 0 && row < rows.length; row += by) {
    const call = nearest(rows[row], calls.start[selection]);
    if (call >= 0) return select(call);
  }
}

function toEdge(last) {
  const rank = selection >= 0 ? rankOf(selection) : rows[Math.max(0, rowAt(RULER))].rank;
  if (calls.count[rank]) select(last ? run.offsets[rank + 1] - 1 : run.offsets[rank]);
}

function nextOfVerdict() {
  const all = run.verdicts.flatMap((verdict) => verdict.calls);
  if (all.length) select(all[(all.indexOf(selection) + 1) % all.length]);
}

function toCounterpart() {
  if (selection < 0) return;
  const other = calls.partner[selection];
  const call = isMessage(selection) ? other : other >= 0 && other < run.ranks ? memberOf(other, selection) : -1;
  if (call >= 0) select(call);
}

function setTheme(theme, keep = false) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  if (keep) try { localStorage.setItem("phalanx-theme", theme); } catch { /* not from a frame */ }
  setColours();
  fillLegend();
  resize();
  fillMore();
}

function chosenTheme() {
  try {
    const kept = localStorage.getItem("phalanx-theme");
    if (kept === "dark" || kept === "light") return kept;
  } catch { /* not from a frame */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
