// ---- verdicts --------------------------------------------------------------------------------

const blamedRanks = new Set();

function readVerdicts() {
  for (const verdict of run.verdicts) {
    for (const rank of verdict.ranks) blamedRanks.add(rank);
    verdict.calls = verdict.blocks.flatMap((block) => block.calls);
    for (const block of verdict.blocks)
      for (const call of block.calls)
        calls.blame[call] = block.odd || verdict.ranks.includes(rankOf(call)) ? 2 : Math.max(1, calls.blame[call]);
    verdict.time = verdict.calls.reduce((most, call) => Math.max(most, calls.start[call], calls.begin[call]), -1);
  }
}

/** Which calls and which waits of the verdicts the rows show: folded ranks are one. */
function placeVerdicts() {
  for (const verdict of run.verdicts) {
    verdict.marks = new Map(); // call that is in sight -> whether it is to blame
    for (const call of verdict.calls) {
      const visible = shown(call);
      verdict.marks.set(visible, verdict.marks.get(visible) || calls.blame[call] === 2);
    }
    const follows = new Map(verdict.cycle.map((rank, n) => [rank, verdict.cycle[(n + 1) % verdict.cycle.length]]));
    const edges = new Map();
    for (const block of verdict.blocks) {
      const needed = new Map(block.needs.map((rank) => [rowOfRank[rank], rank]));
      for (const rank of block.ranks)
        for (const [to, other] of needed) {
          const strong = follows.has(rank) && rowOfRank[follows.get(rank)] === to;
          if (rowOfRank[rank] !== to && (strong || edges.size < 300))
            edges.set(`${rowOfRank[rank]} ${to}`, [rowOfRank[rank], to, strong, other]);
        }
    }
    verdict.until = [...verdict.marks.keys()].reduce((least, call) => (calls.end[call] > verdict.time ? Math.min(least, calls.end[call]) : least), run.duration);
    verdict.edges = [...edges.values()].sort((a, b) => Number(a[2]) - Number(b[2]));
  }
}

function drawVerdicts() {
  pen.fillStyle = colours.bad;
  for (const { time, rank } of run.findings) {
    const x = xOf(time), y = yOf(rowOfRank[rank]);
    pen.beginPath();
    pen.moveTo(x - 5, y);
    pen.lineTo(x + 5, y);
    pen.lineTo(x, y + 8);
    pen.fill();
  }
  pen.fillStyle = colours.ink;
  for (const { time, rank } of run.faults) {
    const x = xOf(time), y = yOf(rowOfRank[rank]) + 4;
    pen.beginPath();
    pen.moveTo(x - 4, y);
    pen.lineTo(x, y - 4);
    pen.lineTo(x + 4, y);
    pen.lineTo(x, y + 4);
    pen.fill();
  }
  for (const verdict of run.verdicts) {
    for (const [call, blamed] of verdict.marks) outlineCall(call, blamed ? colours.bad : colours.soft, 2);
    if (verdict.edges.length) drawWaits(verdict);
    else if (verdict.marks.size > 1) drawDisagreement(verdict);
  }
}

function outlineCall(call, colour, thick) {
  const row = rowOfCall(call);
  const begin = calls.begin[call] >= 0 ? Math.min(calls.start[call], calls.begin[call]) : calls.start[call];
  const end = Math.max(calls.end[call], calls.shut[call]);
  const left = Math.max(view.label - 3, xOf(begin)), right = Math.min(view.width + 3, xOf(end));
  if (right >= view.label && left <= view.width)
    outline(left, yOf(row) + 1, right - left, view.rowHeight - 3, colour, thick);
}

/** Who waits for whom, at the moment when the last of them began to wait: from the lane of the
 *  rank that waits to that of the rank that it needs. */
function drawWaits(verdict) {
  const room = Math.max(4, (verdict.until - verdict.time) * scale() - 30);
  verdict.edges.forEach(([from, to, strong], n) => {
    const x = xOf(verdict.time) + Math.min(room, 14 + (strong ? 0 : 26 + 10 * (n % 8)));
    pen.strokeStyle = strong ? colours.bad : colours.soft;
    pen.lineWidth = strong ? 2.5 : 1;
    pen.setLineDash(strong ? [] : [3, 3]);
    arrow(x, middleOf(from), x, middleOf(to), from < to ? 22 : -22);
  });
  pen.setLineDash([]);
}

/** The calls that do not agree, joined; those that differ in the colour of errors. */
function drawDisagreement(verdict) {
  const points = [...verdict.marks]
    .map(([call, blamed]) => [xOf(calls.start[call]), middleOf(rowOfCall(call)), blamed])
    .sort((a, b) => a[1] - b[1]);
  pen.strokeStyle = colours.bad;
  pen.setLineDash([4, 3]);
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const [x, y] of points) pen.lineTo(x, y);
  pen.stroke();
  pen.setLineDash([]);
  for (const [x, y, blamed] of points) {
    if (!blamed) continue;
    pen.fillStyle = colours.bad;
    pen.beginPath();
    pen.arc(x, y, 5, 0, 7);
    pen.fill();
    if (view.rowHeight < 20) continue;
    const text = verdict.differs.length ? `differs: ${verdict.differs.join(", ")}` : verdict.kind;
    pen.font = "600 12px system-ui, sans-serif";
    const wide = pen.measureText(text).width + 12;
    const at = clamp(x + 10, view.label, Math.max(view.label, view.width - wide - 4));
    pen.fillRect(at, y - 9, wide, 18);
    pen.fillStyle = colours.paper;
    pen.fillText(text, at + 6, y + 0.5);
  }
}

// ---- selection and what the pointer is on ------------------------------------------------------

let selection = -1;
let hover = -1;

function drawSelection() {
  for (const [call, colour, thick] of [[hover, colours.soft, 1], [selection, colours.link, 2.5]]) {
    if (call < 0) continue;
    drawJoined(call, colour, thick);
    outlineCall(call, colour, thick);
  }
}

function drawJoined(call, colour, thick) {
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = thick;
  if (isMessage(call)) {
    const other = calls.partner[call];
    if (other < 0) return;
    const [from, to] = run.sending[calls.op[call]] ? [call, other] : [other, call];
    const comes = calls.done[to] >= 0 ? calls.done[to] : calls.met[to];
    arrow(xOf(calls.start[from]), middleOf(rowOfCall(from)), xOf(comes), middleOf(rowOfCall(to)));
    return;
  }
  const points = [];
  for (const row of new Set(groupOf(call).ranks.map((rank) => rowOfRank[rank] ?? -1))) {
    if (row < 0) continue;
    const member = memberOf(rows[row].rank, call);
    if (member >= 0) points.push([xOf(calls.start[member]), middleOf(rowOfCall(member))]);
  }
  points.sort((a, b) => a[1] - b[1]);
  pen.globalAlpha = 0.7;
  pen.beginPath();
  for (const [x, y] of points) pen.lineTo(x, y);
  pen.stroke();
  for (const [x, y] of points) pen.fillRect(x - 3, y - 3, 6, 6);
  if (calls.met[call] >= 0 && points.length > 1) {
    const x = xOf(calls.met[call]);
    pen.setLineDash([2, 3]);
    pen.beginPath();
    pen.moveTo(x, points[0][1] - 8);
    pen.lineTo(x, points.at(-1)[1] + 8);
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.globalAlpha = 1;
}

/** The call at a point of the canvas; -1 if there is none. */
function callAt(x, y) {
  const row = rows[rowAt(y)];
  if (!row || x < view.label) return -1;
  const lane = laneOf(row.rank, row.thread);
  const low = y - yOf(rowAt(y)) > view.rowHeight * 0.72;
  const near = 3 / scale(), time = timeAt(x);
  for (const { list, reach, times, ends } of low ? [lane.flights, lane.bars] : [lane.bars, lane.flights]) {
    let best = -1, distance = near;
    for (let at = lowerBound(reach, time - near); at < list.length && times[list[at]] <= time + near; at++) {
      const call = list[at];
      const away = time < times[call] ? times[call] - time : time > ends[call] ? time - ends[call] : 0;
      if (away <= distance) {
        best = call;
        distance = away;
        if (away === 0 && ends[call] - times[call] > near) break;
      }
    }
    if (best >= 0) return best;
  }
  return -1;
}

function select(call, { show = true, focus = false } = {}) {
  selection = call;
  if (call >= 0 && show) {
    const rank = rankOf(call), row = rows[rowOfRank[rank]];
    if (row.rank !== rank) {
      unfolded.add(row.fold);
      refold();
    }
    reveal(call);
  }
  fillPanel();
  if (call >= 0) byId("announce").textContent = describe(call);
  if (focus) byId("panel").focus();
  redraw();
}

function describe(call) {
  const number = isMessage(call) ? "" : `, call ${calls.number[call]} of group ${groupOf(call).name}`;
  const wait = waited(call) ? `, waited ${timeText(waited(call))}` : "";
  return `rank ${rankOf(call)}: ${opOf(call)}${number}, ${lineOf(call)}${wait}`;
}

