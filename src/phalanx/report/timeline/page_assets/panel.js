// ---- the panel -------------------------------------------------------------------------------

function fillPanel() {
  const panel = byId("panel");
  if (selection < 0) {
    panel.replaceChildren(element("h2", {}, "No call selected"),
      element("p", { class: "quiet" }, "Click a bar, or go to the timeline and press an arrow key."));
    return;
  }
  const call = selection, rank = rankOf(call);
  const step = (text, by) => {
    const other = call + by;
    const inside = other >= run.offsets[rank] && other < run.offsets[rank + 1];
    return element("button", { type: "button", disabled: !inside, onclick: () => select(other) }, text);
  };
  panel.replaceChildren(
    element("h2", {}, `${opOf(call)} of rank ${rank}`), ...remarks(call), argumentList(call),
    ...source(call), ...counterparts(call),
    element("div", { class: "steps" }, step("Call before", -1), step("Call after", 1),
      element("button", { type: "button", onclick: () => canvas.focus() }, "Back to the timeline")));
}

function remarks(call) {
  const found = [];
  for (const verdict of run.verdicts)
    for (const block of verdict.blocks) {
      if (!block.calls.includes(call)) continue;
      const needs = block.needs.length ? `: ${needsText(call, block.needs)}` : "";
      const differs = block.odd && verdict.differs.length ? `: differs in ${verdict.differs.join(", ")}` : "";
      found.push(element("p", { class: "bad" }, `${verdict.kind}${needs}${differs}`));
    }
  if (!found.length && isUnmet(call)) found.push(element("p", { class: "bad" }, run.status === "unknown" ? "Still open at the end." : "Never met: not all counterparts came."));
  if (calls.failed[call]) found.push(element("p", { class: "bad" }, "It ended with an error."));
  return found;
}

/** For whom a call waited when the verdict was found. Ranks go on until they are stopped: some
 *  may have come since. */
function needsText(call, needs) {
  const came = needs.filter((rank) => (isMessage(call) ? calls.partner[call] >= 0 : memberOf(rank, call) >= 0));
  const missing = needs.filter((rank) => !came.includes(rank));
  const later = came.length ? `${ranksText(came)} came later, when the run was ending` : "";
  return [missing.length ? `waits for ${ranksText(missing)}` : "", later].filter(Boolean).join("; ");
}

function argumentList(call) {
  const list = element("dl");
  const add = (name, ...values) => list.append(element("dt", {}, name), element("dd", {}, ...values));
  const group = groupOf(call);
  add("group", `${group.name} (${ranksText(group.ranks)})${group.backend ? `, ${group.backend}` : ""}`);
  if (!isMessage(call)) add("call", `#${calls.number[call]} of the group`);
  const tensors = run.tensors[calls.tensors[call]];
  if (tensors?.specs.length) add("tensors", tensors.specs.slice(0, 12).join("; ") +
    (tensors.specs.length > 12 ? `; ... (${tensors.specs.length})` : ""), ` = ${bytesText(tensors.bytes)}`);
  if (calls.reduce[call] >= 0) add("reduce", run.reduceOps[calls.reduce[call]]);
  if (calls.root[call] >= 0) add("root", `rank ${calls.root[call]}`);
  if (isMessage(call)) add(run.sending[calls.op[call]] ? "to" : "from", calls.peer[call] >= 0 ? `rank ${calls.peer[call]}` : "any rank");
  if (isMessage(call) && calls.tag[call] >= 0) add("tag", calls.tag[call]);
  if (calls.asynchronous[call]) add("asynchronous", "yes");
  const thread = threadName(rankOf(call), calls.thread[call]);
  if (thread !== "own") add("thread", thread);
  add("made at", timeText(calls.start[call]));
  const after = (time) => `${timeText(time - calls.start[call])} later`;
  if (calls.met[call] >= 0) add("met", after(calls.met[call]));
  if (calls.done[call] >= 0) add("done", after(calls.done[call]));
  add("waited", calls.waiting[call] < 0 ? "nobody waited for it" : timeText(waited(call)) + (isUnmet(call) ? ", to the end" : ""));
  return list;
}

function source(call) {
  const site = siteOf(call);
  if (!site) return [element("h3", {}, "Line not known")];
  const [, line, name, first, lines] = site;
  const parts = [element("h3", {}, `${lineOf(call)}${name ? ` in ${name}` : ""}`)];
  if (lines.length)
    parts.push(element("pre", { tabindex: 0, "aria-label": "source" }, ...lines.map((text, n) =>
      element("span", first + n === line ? { class: "here" } : {},
        element("span", { class: "number" }, first + n), text || " "))));
  return parts;
}

function counterparts(call) {
  const title = element("h3", {}, "Counterparts");
  if (isMessage(call)) {
    const other = calls.partner[call];
    if (other < 0) return [title, element("p", {}, "The other side never came.")];
    return [title, link(`rank ${rankOf(other)}: ${opOf(other)} at ${lineOf(other)}`, () => select(other))];
  }
  const alike = new Map(), missing = [];
  const last = calls.partner[call];
  for (const rank of groupOf(call).ranks) {
    if (!(rank < run.ranks)) continue;
    const member = memberOf(rank, call);
    if (member < 0) missing.push(rank);
    else if (member !== call) {
      const key = [calls.op[member], calls.site[member], calls.tensors[member], calls.root[member]].join();
      if (!alike.has(key)) alike.set(key, []);
      alike.get(key).push(member);
    }
  }
  const list = element("ul");
  for (const members of alike.values()) {
    const ranks = members.map(rankOf), one = members[0];
    const specs = run.tensors[calls.tensors[one]]?.specs ?? [];
    list.append(element("li", {}, link(`${ranksText(ranks)}: ${opOf(one)} at ${lineOf(one)}`, () => select(one)),
      specs.length ? ` ${specs.slice(0, 3).join("; ")}` : ""));
  }
  if (missing.length) list.append(element("li", { class: "bad" }, `${ranksText(missing)}: never came`));
  const parts = [title, list];
  if (last >= 0 && last < run.ranks) {
    const member = memberOf(last, call);
    parts.push(element("p", {}, "came last: ", member >= 0 ? link(`rank ${last}`, () => select(member)) : `rank ${last}`));
  }
  return parts;
}

// ---- search ----------------------------------------------------------------------------------

let hits = new Int32Array(0);

/** All words of a query must fit a call: `rank 3`, `group:tp`, `op:send`, `train.py:42`; a word
 *  without a field fits the operation, the group, or the line with its function and source. */
function search(query) {
  const words = query.toLowerCase().replace(/\b(rank|group|op|line|thread)\s*[: ]\s*(?=\S)/g, "$1:")
    .split(/\s+/).filter(Boolean);
  if (!words.length) {
    calls.hit = null;
    hits = new Int32Array(0);
    byId("found").textContent = "";
    redraw();
    return;
  }
  const total = calls.start.length;
  const hit = new Uint8Array(total).fill(1);
  for (const each of words) {
    const [, field, text] = /^(?:(rank|group|op|line|thread):)?(.*)$/.exec(each);
    keep(hit, field, text);
  }
  calls.hit = hit;
  hits = new Int32Array(hit.reduce((sum, value) => sum + value, 0));
  for (let call = 0, n = 0; call < total; call++) if (hit[call]) hits[n++] = call;
  byId("found").textContent = many(hits.length, "call");
  redraw();
}

function keep(hit, field, text) {
  const fits = (value) => String(value).toLowerCase().includes(text);
  const any = field === undefined;
  const ops = run.ops.map((name) => (any || field === "op") && fits(name));
  const sites = run.sites.map(([file, line, name, first, lines]) => (any || field === "line") &&
    (fits(`${file}:${line}`) ? !/^\d+$/.test(text) || String(line) === text
      : fits(name) || (any && fits(lines[line - first] ?? ""))));
  const groups = new Map(Object.entries(run.groups).map(([number, group]) =>
    [Number(number), (any || field === "group") && fits(group.name)]));
  const range = /^(\d+)(?:-(\d+))?$/.exec(text);
  for (let rank = 0; rank < run.ranks; rank++) {
    const ofRank = field === "rank" && range && rank >= +range[1] && rank <= +(range[2] ?? range[1]);
    const threads = new Set(field === "thread" ? threadsOf(rank).filter((thread) => threadName(rank, thread) === text) : []);
    for (let call = run.offsets[rank]; call < run.offsets[rank + 1]; call++)
      if (hit[call] && !(ofRank || ops[calls.op[call]] || sites[calls.site[call]] ||
        groups.get(calls.group[call]) || threads.has(calls.thread[call]))) hit[call] = 0;
  }
}

function stepHit(by) {
  if (!hits.length) return;
  const at = lowerBound(hits, selection);
  const exact = hits[at] === selection;
  const next = selection < 0 ? 0 : by > 0 ? at + (exact ? 1 : 0) : at - 1;
  const call = hits[(next + hits.length) % hits.length];
  select(call);
  byId("found").textContent = `${((next + hits.length) % hits.length) + 1} of ${many(hits.length, "call")}`;
}

