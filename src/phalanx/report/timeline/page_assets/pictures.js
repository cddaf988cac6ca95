// ---- tables and the other pictures -----------------------------------------------------------

const MOST_ROWS = 500;
let sums = null; // over all calls: see countAll

/** Count what the tables show, a few ranks at a time so that the page can be used meanwhile. */
async function countAll() {
  const found = {
    waits: new Float64Array(run.ranks), lasts: new Float64Array(run.ranks),
    messages: new Map(), // sender and receiver as one number -> count and bytes
    anyMessage: false, operations: [], ofSite: [[], ...run.sites.map(() => [])],
  };
  let began = performance.now();
  for (let rank = 0; rank < run.ranks; rank++) {
    countRank(found, rank);
    if (performance.now() - began < 25) continue;
    await new Promise((resolve) => setTimeout(resolve, 0));
    began = performance.now();
  }
  sums = found;
}

function countRank(found, rank) {
  const { waits, lasts, messages, operations, ofSite } = found;
  for (let call = run.offsets[rank]; call < run.offsets[rank + 1]; call++) {
    const wait = waited(call), bytes = sizeOf(call), op = calls.op[call];
    const group = groupOf(call).same ?? calls.group[call]; // a world may make its groups again
    waits[rank] += wait;
    if (isMessage(call)) {
      found.anyMessage = true;
      if (run.sending[op] && calls.peer[call] >= 0) {
        const key = rank * run.ranks + calls.peer[call];
        const pair = messages.get(key) ?? { count: 0, bytes: 0 };
        pair.count++;
        pair.bytes += bytes;
        messages.set(key, pair);
      }
    } else if (calls.partner[call] === rank) lasts[rank]++;
    const known = ofSite[calls.site[call] + 1] ?? ofSite[0];
    let sum = known.find((each) => each.op === op && each.group === group);
    if (!sum) {
      sum = { op, group, call, late: lateOf(op, group, calls.site[call]), count: 0, bytes: 0, wait: 0, longest: 0, of: call };
      known.push(sum);
      operations.push(sum);
    }
    sum.count++;
    sum.bytes += bytes;
    sum.wait += wait;
    if (wait > sum.longest) {
      sum.longest = wait;
      sum.of = call;
    }
  }
}

/** Who came last in the calls of one operation and line: ranks, how often, how many ticks after
 *  the one before. */
function lateOf(op, group, site) {
  const found = run.late.find((each) => each[0] === op && each[1] === group && each[2] === site);
  return found ? { all: found[3], most: found.slice(4) } : { all: 0, most: [] };
}

function lateText({ all, most }, shown = 3) {
  const told = most.slice(0, shown).map(([rank, times, ticks]) => `${rank} (${times}x, ${timeText(ticks)})`);
  if (all > told.length) told.push(`+${all - told.length}`);
  return told.join(", ");
}

/** A picture with its table, which is filled when somebody opens it. */
function pictureOf(title, words, picture, rowsOf, attributes = {}) {
  const holder = element("div", { class: "scroll", tabindex: 0 });
  const more = element("details", {}, element("summary", {}, "As a table"), holder);
  more.addEventListener("toggle", () => more.open && holder.replaceChildren(rowsOf()));
  return element("section", attributes, element("h2", {}, title),
    ...(words ? [element("p", { class: "quiet" }, words)] : []), picture, more);
}

function fillMore() {
  if (!sums) return;
  const sections = run.verdicts
    .filter((verdict) => verdict.blocks.some((block) => block.needs.length))
    .map(waitGraph);
  if (run.times.length) sections.push(timeBars());
  sections.push(waitBars(), messageMatrix(), operationTable());
  byId("more").replaceChildren(...sections);
}

/** The nodes of a wait-for graph: ranks in the same situation, and those that they need. */
function waitNodes(verdict) {
  const nodes = verdict.blocks.map((block) => ({ ...block, text: block.op && block.status === "waiting" ? block.op : block.status || block.op }));
  const known = new Set(nodes.flatMap((node) => node.ranks));
  const others = [...new Set(nodes.flatMap((node) => node.needs))].filter((rank) => !known.has(rank)).sort((a, b) => a - b);
  for (const how of [0, 1, 2, 3]) {
    const ranks = others.filter((rank) => calls.how[rank] === how);
    if (ranks.length) nodes.push({ ranks, needs: [], calls: [], op: "", group: "", site: "", status: ["", "finished", "failed", "stopped"][how], text: ["", "has finished", "has failed", "was stopped"][how] });
  }
  return nodes;
}

// Who waits for whom: nodes on an ellipse that is so high that neighbours do not touch.
function waitGraph(verdict) {
  const all = waitNodes(verdict), nodes = all.slice(0, 12);
  const small = nodes.length > 6, half = small ? [34, 13] : [66, 21];
  const turn = (2 * Math.PI) / nodes.length, width = 420;
  const across = width / 2 - half[0] - 8;
  const down = small ? 130 : Math.max(62, (2 * half[1] + 26) / Math.max(0.2, 1 - Math.cos(turn)));
  const centres = nodes.map((_, n) => [width / 2 + Math.sin(turn * n) * across, half[1] + 4 + (1 - Math.cos(turn * n)) * down]);
  const height = Math.max(...centres.map(([, y]) => y)) + half[1] + 4;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": "Wait-for graph; its table follows" });
  const head = (id, colour) => shape("marker", { id, viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    shape("path", { d: "M0 0 8 4 0 8z", fill: colour }));
  svg.append(shape("defs", {}, head("head-bad", colours.bad), head("head", colours.soft)));
  const next = new Map(verdict.cycle.map((rank, n) => [rank, verdict.cycle[(n + 1) % verdict.cycle.length]]));
  nodes.forEach((node, from) => nodes.forEach((other, to) => {
    if (from === to || !node.needs.some((rank) => other.ranks.includes(rank))) return;
    const strong = node.ranks.some((rank) => next.has(rank) && other.ranks.includes(next.get(rank)));
    svg.append(waitEdge(centres[from], centres[to], half, strong));
  }));
  nodes.forEach((node, n) => {
    const [x, y] = centres[n];
    const bad = node.ranks.some((rank) => verdict.cycle.includes(rank) || verdict.ranks.includes(rank));
    const label = (text, below, size, weight) => {
      const made = shape("text", { x, y: y + below, "text-anchor": "middle", "font-size": size, "font-weight": weight });
      made.textContent = text.length > 21 ? `${text.slice(0, 20)}…` : text;
      return made;
    };
    svg.append(shape("rect", { x: x - half[0], y: y - half[1], width: 2 * half[0], height: 2 * half[1], rx: 5, fill: colours.shade, stroke: bad ? colours.bad : colours.line, "stroke-width": bad ? 2 : 1 }));
    if (small) svg.append(label(ranksText(node.ranks).slice(0, 11), 4, 11, 600));
    else svg.append(label(ranksText(node.ranks), -4, 12, 600), label(node.text, 12, 11, 400));
  });
  const cycle = verdict.cycle.length > 12 ? `a cycle of ${verdict.cycle.length} ranks`
    : verdict.cycle.length ? [...verdict.cycle, verdict.cycle[0]].map((rank) => `rank ${rank}`).join(" → ") : "";
  const moment = cycle || "As it was when that was found.";
  const words = all.length > nodes.length ? `${moment} (${nodes.length} of ${all.length} are drawn; the table has all)` : moment;
  return pictureOf("Who waits for whom", words, svg, () =>
    table(["ranks", "state", "call", "group", "line", "waits for"], all.map((node) => [
      rankText(node.ranks), node.status, node.op, node.group,
      node.calls.length ? link(node.site || "show", () => select(node.calls[0])) : node.site, rankText(node.needs)])));
}

/** From the edge of one node to that of the other, with a bend so that there and back differ. */
function waitEdge(from, to, half, strong) {
  const far = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
  const right = (to[0] - from[0]) / far, low = (to[1] - from[1]) / far;
  const bend = Math.min(24, far / 6);
  const middle = [(from[0] + to[0]) / 2 - low * bend, (from[1] + to[1]) / 2 + right * bend];
  const start = onEdge(from, middle, half, 2), end = onEdge(to, middle, half, 3);
  return shape("path", {
    d: `M${start.join(" ")}Q${middle.join(" ")} ${end.join(" ")}`, class: "wait-edge",
    fill: "none", stroke: strong ? colours.bad : colours.soft, "stroke-width": strong ? 2 : 1.2,
    "marker-end": `url(#${strong ? "head-bad" : "head"})`, "stroke-dasharray": strong ? "none" : "4 3",
  });
}

/** Where the line from the centre of a node to a point leaves the node, and a little further. */
function onEdge([x, y], [toX, toY], half, gap) {
  const far = Math.hypot(toX - x, toY - y) || 1, right = (toX - x) / far, low = (toY - y) / far;
  const room = Math.min(half[0] / Math.max(1e-6, Math.abs(right)), half[1] / Math.max(1e-6, Math.abs(low))) + gap;
  return [x + right * room, y + low * room];
}

function smallCanvas(width, height, label) {
  const made = element("canvas", { role: "img", "aria-label": `${label}; its table follows` });
  made.width = Math.round(width * view.rate);
  made.height = Math.round(height * view.rate);
  made.style.width = `${width}px`;
  made.style.height = `${height}px`;
  const brush = made.getContext("2d");
  brush.scale(view.rate, view.rate);
  brush.font = "11px system-ui, sans-serif";
  return [made, brush];
}

function waitBars() {
  const { waits, lasts } = sums;
  const width = 420, height = 170, floor = height - 18, left = 4;
  const [made, brush] = smallCanvas(width, height, "Time waited by rank");
  const most = Math.max(1, waits.reduce((a, b) => Math.max(a, b), 0));
  const bars = Math.min(run.ranks, width - left), part = run.ranks / bars;
  const step = Math.min(44, (width - left) / bars), gap = step > 5 ? 1.5 : 0;
  for (let bar = 0; bar < bars; bar++) {
    let longest = 0, bad = false;
    for (let rank = Math.floor(bar * part); rank < Math.floor((bar + 1) * part); rank++) {
      longest = Math.max(longest, waits[rank]);
      bad ||= blamedRanks.has(rank);
    }
    const high = (longest / most) * (floor - 18);
    brush.fillStyle = bad ? colours.bad : colours.dark ? "#6f9fe0" : "#3a6cb3";
    brush.fillRect(left + bar * step, floor - high, step - gap, high);
  }
  brush.fillStyle = colours.line;
  brush.fillRect(left, floor, width - left, 1);
  brush.fillStyle = colours.soft;
  const every = Math.max(1, Math.ceil(run.ranks / Math.min(16, run.ranks)));
  for (let rank = 0; rank < run.ranks; rank += every) brush.fillText(rank, left + (rank / part) * step + 1, height - 5);
  brush.fillText(timeText(most), left, 11);
  const text = (ticks) => `${timeText(ticks)} (${Math.round((100 * ticks) / Math.max(1, run.duration))} %)`;
  return pictureOf("Time waited by rank", blamedRanks.size ? "Red: the ranks that a verdict is about." : "", made, () =>
    table(["rank", "calls", "waited", "came last"], Array.from(waits.slice(0, 4096), (ticks, rank) =>
      [rank, calls.count[rank], text(ticks), lasts[rank]]), [0, 1, 2, 3]));
}

const partNames = ["computing", "and communicating", "exposed communication", "waiting for others"];

/** What ranks spent their time with, where operations had a cost: a bar for each rank. */
function timeBars() {
  const width = 420, height = 204, floor = height - 48, left = 4;
  const [made, brush] = smallCanvas(width, height, "Time by rank: computing, communicating, waiting");
  const shades = colours.dark ? ["#4d7a4d", "#7fb36f", "#e69a66", "#56565e"] : ["#a9cfa4", "#5f9a57", "#c2662b", "#c9c9d1"];
  const bars = Math.min(run.ranks, width - left), part = run.ranks / bars;
  const step = Math.min(44, (width - left) / bars), gap = step > 5 ? 1.5 : 0;
  const most = run.times.reduce((a, [computing, , exposed, waiting]) => Math.max(a, computing + exposed + waiting), 1);
  for (let bar = 0; bar < bars; bar++) {
    const [computing, overlapped, exposed, waiting] = run.times[Math.floor(bar * part)];
    let at = floor;
    [computing - overlapped, overlapped, exposed, waiting].forEach((ticks, n) => {
      const high = (ticks / most) * (floor - 14);
      brush.fillStyle = shades[n];
      brush.fillRect(left + bar * step, at - high, step - gap, high);
      at -= high;
    });
  }
  brush.fillStyle = colours.soft;
  const every = Math.max(1, Math.ceil(run.ranks / 16));
  for (let rank = 0; rank < run.ranks; rank += every) brush.fillText(rank, left + (rank / part) * step + 1, floor + 13);
  brush.fillText(timeText(most), left, 11);
  partNames.forEach((name, n) => {
    const across = left + (n % 2) * 200, down = height - (n < 2 ? 25 : 11);
    brush.fillStyle = shades[n];
    brush.fillRect(across, down, 9, 9);
    brush.fillStyle = colours.soft;
    brush.fillText(name, across + 13, down + 8);
  });
  const text = (ticks) => `${timeText(ticks)} (${Math.round((100 * ticks) / most)} %)`;
  return pictureOf("What ranks spent their time with", "Exposed: a rank only waits for communication.", made, () =>
    table(["rank", ...partNames], run.times.slice(0, 4096).map((parts, rank) => [rank, ...parts.map(text)]), [0, 1, 2, 3, 4]));
}

function messageMatrix() {
  const { messages } = sums;
  const pairs = [...messages].map(([key, pair]) => ({ from: Math.floor(key / run.ranks), to: key % run.ranks, ...pair }));
  const none = sums.anyMessage ? "No rank sent one." : "No rank sent one: ranks only met in collectives.";
  const oneSided = run.oneSided.map((text) => element("p", { class: "bad" }, text));
  if (!pairs.length)
    return element("section", {}, element("h2", {}, "Messages from rank to rank"),
      ...(oneSided.length ? oneSided : [element("p", { class: "quiet" }, none)]));
  const cells = Math.min(run.ranks, 128), part = run.ranks / cells, filled = new Float64Array(cells * cells);
  for (const { from, to, bytes } of pairs) filled[Math.floor(from / part) * cells + Math.floor(to / part)] += bytes + 1;
  const most = filled.reduce((a, b) => Math.max(a, b), 0), step = Math.min(28, 300 / cells), room = step * cells, left = 34, top = 20;
  const [made, brush] = smallCanvas(room + left + 4, room + top + 4, "Bytes sent from rank to rank");
  brush.fillStyle = colours.shade;
  brush.fillRect(left, top, room, room);
  brush.fillStyle = colours.dark ? "#e69a66" : "#c2662b";
  for (let n = 0; n < filled.length; n++) {
    if (!filled[n]) continue;
    brush.globalAlpha = 0.15 + 0.85 * Math.sqrt(filled[n] / most);
    brush.fillRect(left + (n % cells) * step, top + Math.floor(n / cells) * step, Math.max(1, step - (step > 6 ? 1 : 0)), Math.max(1, step - (step > 6 ? 1 : 0)));
  }
  brush.globalAlpha = 1;
  brush.fillStyle = colours.soft;
  const every = Math.ceil(run.ranks / 12);
  for (let rank = 0; rank < run.ranks; rank += every) {
    brush.fillText(rank, left + (rank / part) * step + 1, top - 6);
    brush.textAlign = "right";
    brush.fillText(rank, left - 5, top + (rank / part) * step + Math.min(step / 2 + 4, 11));
    brush.textAlign = "left";
  }
  pairs.sort((a, b) => b.bytes - a.bytes || b.count - a.count);
  const section = pictureOf("Messages from rank to rank", "A row sends, a column receives; darker is more bytes.", made, () =>
    table(["from", "to", "messages", "bytes"], pairs.slice(0, MOST_ROWS).map((pair) =>
      [pair.from, pair.to, pair.count.toLocaleString("en"), bytesText(pair.bytes)]), [0, 1, 2, 3]));
  section.append(...oneSided);
  return section;
}

function operationTable() {
  const found = [...sums.operations].sort((a, b) => b.wait - a.wait || b.count - a.count);
  const rowsOf = found.slice(0, MOST_ROWS).map((sum) => [
    opOf(sum.call), groupOf(sum.call).name, link(lineOf(sum.call), () => select(sum.call)), sum.count.toLocaleString("en"),
    bytesText(sum.bytes), timeText(sum.wait), sum.longest ? link(timeText(sum.longest), () => select(sum.of)) : "", lateText(sum.late)]);
  return element("section", { class: "broad" }, element("h2", {}, "Operations by line"),
    ...(run.stragglers ? [element("p", { class: "bad", id: "stragglers" }, run.stragglers)] : []),
    element("div", { class: "scroll", tabindex: 0 },
      table(["operation", "group", "line", "calls", "bytes", "waited", "longest", "came last: rank (times, how much later)"], rowsOf, [3, 4, 5, 6])));
}

/** The calls in sight, for whoever does not see the picture. */
function fillCallsTable() {
  const details = byId("calls");
  if (!details.open) return;
  const found = [];
  const first = Math.max(0, rowAt(RULER)), last = Math.min(rows.length - 1, rowAt(view.height - 1));
  for (let n = first; n <= last && found.length < MOST_ROWS; n++) {
    const { rank, thread } = rows[n];
    let call = lowerBound(calls.start, view.from, run.offsets[rank], run.offsets[rank + 1]);
    for (; call < run.offsets[rank + 1] && calls.start[call] <= view.to && found.length < MOST_ROWS; call++)
      if (calls.thread[call] === thread && (!calls.hit || calls.hit[call])) found.push(call);
  }
  const key = found.join();
  if (details.shows === key) return;
  details.shows = key;
  details.querySelector(".scroll").replaceChildren(table(
    ["rank", "operation", "group", "call", "line", "made at", "waited", "state"],
    found.map((call) => [rankOf(call), link(opOf(call), () => select(call, { show: false })), groupOf(call).name,
      isMessage(call) ? "" : `#${calls.number[call]}`, lineOf(call), timeText(calls.start[call]), timeText(waited(call)),
      calls.failed[call] ? "failed" : isUnmet(call) ? openWord() : "met"]), [0, 3, 5, 6]),
    ...(found.length === MOST_ROWS ? [element("p", { class: "quiet" }, `The first ${MOST_ROWS}; zoom in for the others.`)] : []));
}

function fillLegend() {
  const seen = new Map();
  run.ops.forEach((name, n) => {
    const colour = colours.ops[n].solidText;
    seen.set(colour, [...(seen.get(colour) ?? []), name]);
  });
  const entry = (style, text) => {
    const sample = element("i");
    Object.assign(sample.style, style);
    return element("span", {}, sample, text);
  };
  const hatch = `repeating-linear-gradient(135deg, ${colours.soft} 0 1px, transparent 1px 4px)`;
  byId("legend").replaceChildren(
    ...[...seen].slice(0, 10).map(([colour, names]) => entry({ background: colour }, names.slice(0, 4).join(", ") + (names.length > 4 ? ", ..." : ""))),
    entry({ background: hatch, border: `1px solid ${colours.line}` }, "waits"),
    entry({ background: `linear-gradient(90deg, ${colours.ink} 0 45%, ${colours.soft} 45%)` }, "met, then done and not yet running"),
    entry({ background: colours.soft, height: "4px" }, "goes on by itself (asynchronous)"),
    ...(run.findings.length ? [entry({ background: colours.bad, clipPath: "polygon(0 0, 100% 0, 50% 100%)" }, "a check found something")] : []),
    ...(run.faults.length ? [entry({ background: colours.ink, clipPath: "polygon(50% 0, 100% 50%, 50% 100%, 0 50%)" }, "a fault of the plan")] : []));
}

// ---- the start -------------------------------------------------------------------------------

function fillHeader() {
  const { facts } = run;
  const name = facts.program || facts.command || "Run";
  byId("title").textContent = name;
  document.title = `${name}: ${run.ranks} ranks`;
  const total = calls.start.length;
  const words = [many(run.ranks, "rank"), facts.engine, facts.backend, many(total, "call"), timeText(run.duration),
    run.started ? new Date(run.started * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC" : ""];
  byId("facts").textContent = words.filter(Boolean).join(" · ");
  byId("facts").title = Object.entries(facts).map(([key, value]) => `${key}: ${value}`).join("\n");
  const badge = byId("badge");
  badge.textContent = run.status === "finished" ? "finished" : run.status === "failed" ? `failed${run.error ? `: ${run.error}` : ""}` : "no end recorded";
  badge.classList.add(run.status === "finished" ? "good" : "bad");
  const list = byId("verdicts");
  list.append(...run.verdicts.map((verdict, nth) => element("li", {}, verdictText(verdict, nth), " ",
    ...(verdict.calls.length ? [link("Show", () => select(verdict.calls.find((call) => calls.blame[call] === 2) ?? verdict.calls[0]))] : []))));
  const kinds = new Set(run.verdicts.map((verdict) => verdict.kind));
  const others = run.findings.filter((finding) => !kinds.has(finding.about));
  list.append(...others.slice(0, 20).map((finding) => element("li", {}, `${finding.about} (${finding.severity}): rank ${finding.rank} `,
    link("Show", () => showMoment(finding)))));
  if (others.length > 20) list.append(element("li", {}, `${others.length - 20} more, each with a mark in the timeline`));
  list.append(...run.faults.slice(0, 20).map((fault) => element("li", {}, `${fault.what} ${fault.how} `, link("Show", () => showMoment(fault)))));
  list.hidden = !list.children.length;
  if (run.text) {
    byId("report").hidden = false;
    byId("report").querySelector("pre").textContent = run.text;
  }
  const notes = [...(run.stragglers ? [`${run.stragglers[0].toUpperCase()}${run.stragglers.slice(1)}.`] : []), ...run.notes];
  byId("notes").append(...notes.map((text) => element("li", {}, text)));
  byId("notes").hidden = !notes.length;
}

/** The part of the run around a finding. */
function showMoment({ time, rank }) {
  const span = Math.min(view.to - view.from, run.duration / 4);
  setTop(rowOfRank[rank] * view.rowHeight - view.height / 3);
  setView(time - span / 2, time + span / 2);
}

function verdictText(verdict, nth) {
  const [headline] = run.text.split("\n");
  if (nth === 0 && headline && verdict.severity === "error") return `${verdict.kind}: ${headline}`;
  if (verdict.headline) return `${verdict.kind}: ${verdict.headline}`;
  const parts = [verdict.kind];
  if (verdict.cycle.length) parts.push(`${ranksText(verdict.cycle)} wait for each other`);
  else if (verdict.differs.length) parts.push(`${ranksText(verdict.ranks)} ${verdict.ranks.length === 1 ? "differs" : "differ"} in ${verdict.differs.join(", ")}`);
  else if (verdict.ranks.length) parts.push(ranksText(verdict.ranks));
  return parts.join(": ");
}

/** First the part of the run that the verdict is about, if there is one: the call, so wide that
 *  it can be seen, and a dozen before it. */
function firstView() {
  const verdict = run.verdicts.find((each) => each.calls.length);
  showWhole();
  if (!verdict) return;
  selection = shown(verdict.calls.find((each) => calls.blame[each] === 2) ?? verdict.calls[0]);
  const before = Math.max(run.offsets[rankOf(selection)], selection - 12);
  const end = Math.max(calls.end[selection], calls.shut[selection]);
  const span = Math.max(8 * (end - calls.start[selection]), end - calls.start[before]);
  setView(end - span * 0.97, end + span * 0.03);
  setTop(rowOfCall(selection) * view.rowHeight - view.height / 3);
}

async function begin() {
  const began = performance.now();
  await unpack();
  canvas = byId("timeline");
  pen = canvas.getContext("2d", { alpha: false });
  map = byId("minimap");
  readVerdicts();
  folding = run.ranks > 16 && run.folds.length < run.ranks;
  fillHeader();
  canvas.setAttribute("aria-label", `Timeline of ${many(run.ranks, "rank")}. Arrow keys move from call to call, Enter shows one.`);
  layRows();
  document.documentElement.dataset.theme = chosenTheme();
  byId("theme").textContent = document.documentElement.dataset.theme === "dark" ? "Light" : "Dark";
  setColours();
  fillLegend();
  byId("fold").setAttribute("aria-pressed", folding);
  byId("fold").hidden = run.folds.length === run.ranks;
  resize();
  firstView();
  fillPanel();
  draw();
  listen();
  const opened = performance.now();
  window.phalanx.opened = { script: opened - began, page: opened };
  if (document.documentElement.dataset.layout !== "inline") {
    await new Promise((resolve) => setTimeout(resolve, 0)); // the picture first
    await countAll();
    fillMore();
  }
  run.ready = true;
}

// For tests and for the console.
window.phalanx = {
  opened: null,
  state: () => ({
    ready: Boolean(run?.ready), rows: rows.map((row) => row.label), from: view.from, to: view.to, top: view.top,
    calls: calls?.start.length, selection, hover, hits: hits.length, folding, theme: document.documentElement.dataset.theme, drawn: { ...drawn },
  }),
  place: (call) => ({
    x: xOf((Math.max(view.from, calls.start[call]) + Math.min(view.to, Math.max(calls.end[call], calls.shut[call]))) / 2),
    y: yOf(rowOfCall(call)) + view.rowHeight / 2,
  }),
  select, setView, setFolding, draw,
};

begin().catch((error) => {
  const trouble = byId("trouble");
  trouble.textContent = `The page could not be drawn (${error.message}). It needs a browser of 2023 or later; is the file whole?`;
  trouble.hidden = false;
  console.error(error);
});
