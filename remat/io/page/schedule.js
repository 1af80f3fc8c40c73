/** Memory of device and host, work of the links, and Gantt chart of a schedule over its compute steps, costs or times. */
function schedulePicture(data) {
  const steps = data.steps, count = steps.length, { tensor, start, end } = data.intervals;
  const memory = data.memory, sizes = data.sizes, instances = tensor.length;
  const opName = op => data.ops[op], tensorName = t => typeof data.tensors[t] === "number" ? data.ops[data.tensors[t]] : data.tensors[t];
  const TOP = 18, AXIS = 34, ROW = 3, BAND = 112, LINK = 15;  // module bands; axis between the charts; least height of a row and width of a band; height of a link

  // computes of each op, readers of each tensor, instances of each tensor
  const computes = data.ops.map(() => []), ordinal = new Int32Array(count);
  steps.forEach((op, step) => { computes[op].push(step); ordinal[step] = computes[op].length; });
  const readers = sizes.map(() => []);
  data.reads.forEach((read, op) => read.forEach(t => readers[t].push(op)));
  const ofTensor = sizes.map(() => []);
  tensor.forEach((t, k) => ofTensor[t].push(k));
  const given = new Set(data.inputs), kept = new Set(data.kept), fetched = new Set(data.intervals.fetched);
  const named = sizes.map((_, t) => t).filter(t => ofTensor[t].length);
  const before = (a, b) => start[ofTensor[a][0]] - start[ofTensor[b][0]] || a - b;
  // largest first; equal sizes in a scattered order, so that a choice of them covers the whole schedule
  const scattered = t => { const mixed = Math.imul(t + 1, 0x9e3779b1); return Math.imul(mixed ^ (mixed >>> 15), 0x85ebca6b) >>> 0; };
  const rank = new Int32Array(sizes.length);
  [...named].sort((a, b) => sizes[b] - sizes[a] || scattered(a) - scattered(b)).forEach((t, k) => { rank[t] = k; });

  // with a machine, a step begins with the wait before its compute, and the last one ends with that at the end
  const { host, clock } = data, waits = new Float64Array(count + 1);
  if (clock) clock.waits.step.forEach((step, k) => { waits[step] = clock.waits.length[k]; });
  const byStep = Float64Array.from({ length: count + 1 }, (_, k) => k), byTime = new Float64Array(count + 1);
  steps.forEach((op, step) => { byTime[step + 1] = byTime[step] + waits[step] + (data.costs[op] || 0); });
  if (count) byTime[count] += waits[count];
  const unit = clock ? clock.unit : data.costUnit, perUnit = clock ? clock.scale : 1, timed = !!clock && byTime[count] > 0;
  let edges = timed ? byTime : byStep, rows = [], cursor = null, places = [], place = -1, marked = new Set();

  const onHost = new Float64Array(count);
  if (host) host.step.forEach((step, k) => onHost.fill(host.bytes[k], step));
  // transfers of each link; those of one link follow each other
  const { tensor: moved, start: begun, length: lasts } = clock ? clock.transfers : { tensor: [], start: [], length: [] };
  const isBack = new Uint8Array(moved.length);
  if (clock) clock.transfers.back.forEach(k => { isBack[k] = 1; });
  const LINKS = [["to host", GREY], ["from host", FETCHED]].map(([name, colour], back) => {
    const of = moved.map((_, k) => k).filter(k => isBack[k] === back);
    return { name, colour, of, starts: of.map(k => begun[k]) };
  });
  const moveName = k => isBack[k] ? `read of ${tensorName(moved[k])} from the host` : `write of ${tensorName(moved[k])} to the host`;
  const duration = time => `${number(Number((time / perUnit).toPrecision(4)))} ${unit}`;

  /** Return the place of a time on the axis. */
  function atTime(time) {
    if (edges === byTime) return time;
    const step = Math.min(Math.max(above(byTime, time) - 1, 0), count - 1), span = byTime[step + 1] - byTime[step];
    return step + (span ? Math.min((time - byTime[step]) / span, 1) : 0);
  }

  const area = () => view.height - TOP - AXIS;
  const profile = () => ({ top: TOP + 4, bottom: TOP + 4 + Math.max(host ? 76 : 90, area() * (host ? 0.26 : 0.34)) });
  const hostProfile = () => { const top = profile().bottom + 8; return { top, bottom: host ? top + Math.max(44, area() * 0.13) : profile().bottom }; };
  const links = () => { const top = hostProfile().bottom + 8; return { top, bottom: clock && moved.length ? top + LINKS.length * LINK : hostProfile().bottom }; };
  const gantt = () => ({ top: links().bottom + AXIS, bottom: view.height - 4 });
  const highest = 1.06 * Math.max(data.peak, data.budget || 0, data.reference ? Math.max(...data.reference) : 0, 1);
  const toY = (size, { top, bottom } = profile(), most = highest) => bottom - size / most * (bottom - top);
  const visible = () => [Math.max(above(edges, view.low) - 1, 0), Math.min(above(edges, view.high - 1e-9), count)];
  const stepAt = px => Math.min(Math.max(above(edges, toValue(px)) - 1, 0), count - 1);
  const middle = step => (edges[step] + edges[step + 1]) / 2;

  /** Draw a band for each layer; neighbours narrower than a label share one with the names of the first and the last. */
  function drawBands([from, to]) {
    if (!data.modules.length) return;
    const place = step => Math.min(Math.max(toPixel(edges[step]), LEFT), view.width - RIGHT);
    let shade = 0;
    for (let step = from; step < to;) {
      const first = layer(steps[step]);
      let last = step, latest = first;
      const joins = next => layer(steps[next]) === latest
        || (next !== data.backward && latest >= 0 && layer(steps[next]) >= 0 && place(next) - place(step) < BAND);
      while (last < to && joins(last)) latest = layer(steps[last++]);
      if (first >= 0) {
        const x0 = place(step), x1 = place(last);
        pen.fillStyle = shade++ % 2 ? "#d6d6d6" : "#f0f0f0";
        pen.fillRect(x0, 1, Math.max(x1 - x0, 0.5), TOP - 2);
        const text = bandText(data.layers[first], data.layers[latest], x1 - x0 - 10);
        if (text.length > 2) write(text, x0 + 3, TOP / 2);
      }
      step = last;
    }
  }

  /** Join two names of layers: "layers.3" and "layers.7" to "layers.3–7". */
  function layerRange(first, last) {
    if (first === last) return first;
    const shared = /^(.*?)(\d+)$/.exec(first), other = /^(.*?)(\d+)$/.exec(last);
    return shared && other && shared[1] === other[1] ? `${first}–${other[2]}` : `${first} … ${last}`;
  }

  /** Return the longest form of a band's name that fits; a range without room for both names keeps the first. */
  function bandText(first, last, width) {
    const forms = [layerRange(first, last), `${first} …`].filter(text => pen.measureText(text).width <= width);
    return forms[0] ?? clipped(first, width);
  }

  const layer = op => data.module[op] === undefined || data.module[op] < 0 ? -1 : data.layerOf[data.module[op]];

  /** Draw lines and labels of bytes. */
  function drawBytes(box, most, wanted) {
    const scale = 1024 ** Math.min(5, Math.max(0, Math.floor(Math.log2(most) / 10)));
    for (const tick of ticks(0, most / scale, wanted, 2)) {
      const y = toY(tick * scale, box, most);
      line(LEFT, y, view.width - RIGHT, y, PALE);
      write(tick ? bytes(tick * scale).replace(/\.?0+ /, " ") : "0", LEFT - 4, y, "right");
    }
  }

  function drawHost([from, to]) {
    const box = hostProfile(), most = 1.15 * Math.max(host.peak, 1);
    drawBytes(box, most, 2);
    pen.fillStyle = FIRST;
    for (let step = from; step < to;) {  // steps of equal bytes together, without seams
      const first = step, held = onHost[first], y = toY(held, box, most);
      while (step < to && onHost[step] === held) step++;
      const x0 = Math.max(toPixel(edges[first]), LEFT), x1 = Math.min(toPixel(edges[step]), view.width - RIGHT);
      pen.fillRect(x0, y, Math.max(x1 - x0, 1), box.bottom - y);
    }
    writeOver(`host, at most ${bytes(host.peak)}`, LEFT + 4, box.top + 5);
  }

  /** Draw the transfers of each link, and shade the times at which the device waits. */
  function drawLinks([from, to]) {
    const { top, bottom } = links();
    LINKS.forEach(({ name, colour, of, starts }, row) => {
      const y = top + row * LINK;
      write(name, LEFT - 4, y + LINK / 2, "right");
      for (let k = Math.max(above(starts, byTime[from]) - 1, 0); k < of.length && starts[k] <= byTime[to]; k++) {
        const x0 = Math.max(toPixel(atTime(starts[k])), LEFT), x1 = Math.min(toPixel(atTime(starts[k] + lasts[of[k]])), view.width - RIGHT);
        if (x1 < LEFT) continue;
        pen.fillStyle = colour;
        pen.fillRect(x0, y + 1, Math.max(x1 - x0, 1), LINK - 2);
        if (x1 - x0 > 3) line(x1, y + 1, x1, y + LINK - 1, "#fff", [], 0.5);
        if (marked.has(moved[of[k]]) || (cursor && (cursor.move === of[k] || cursor.tensor === moved[of[k]]))) {
          pen.strokeStyle = FOUND; pen.lineWidth = 2; pen.strokeRect(x0, y + 1, Math.max(x1 - x0, 2), LINK - 2);
        }
      }
    });
    pen.fillStyle = FAULT + "33";
    for (let step = from; step <= to; step++) {
      if (!waits[step]) continue;
      const begin = step < count ? byTime[step] : byTime[count] - waits[count];
      const x0 = Math.max(toPixel(atTime(begin)), LEFT), x1 = Math.min(toPixel(atTime(begin + waits[step])), view.width - RIGHT);
      if (x1 > x0) pen.fillRect(x0, profile().top, Math.max(x1 - x0, 1), bottom - profile().top);
    }
  }

  function drawProfile([from, to]) {
    const { top, bottom } = profile(), columns = Math.max(Math.ceil(view.width - LEFT - RIGHT), 1);
    drawBytes(profile(), highest, host ? 3 : 4);
    // per pixel column: the largest memory, and the share of recomputations in it
    const most = new Float64Array(columns), again = new Float64Array(columns), seen = new Float64Array(columns);
    for (let step = from; step < to; step++) {
      const x0 = Math.max(Math.floor(toPixel(edges[step]) - LEFT), 0);
      const x1 = Math.min(Math.max(Math.ceil(toPixel(edges[step + 1]) - LEFT), x0 + 1), columns);
      for (let x = x0; x < x1; x++) {
        most[x] = Math.max(most[x], memory[step]); seen[x]++; again[x] += ordinal[step] > 1;
      }
    }
    for (let x = 0; x < columns; x++) {
      if (!seen[x]) continue;
      pen.fillStyle = 2 * again[x] >= seen[x] ? AGAIN : FIRST;
      pen.fillRect(LEFT + x, toY(most[x]), 1.02, bottom - toY(most[x]));
      pen.fillStyle = AGAIN;
      if (again[x]) pen.fillRect(LEFT + x, bottom - 6, 1.02, 6);  // a single recomputation among many steps stays visible
    }
    if (data.reference) {
      pen.strokeStyle = INK; pen.lineWidth = 1; pen.setLineDash([]);
      pen.beginPath();
      let begun = false, last = 0;
      for (let step = from; step < to; step++) {
        if (ordinal[step] > 1 || data.reference[steps[step]] === undefined) continue;
        const y = toY(data.reference[steps[step]]), x0 = Math.max(toPixel(edges[step]), LEFT);
        if (begun) { pen.lineTo(x0, last); pen.lineTo(x0, y); } else pen.moveTo(x0, y);
        pen.lineTo(Math.min(toPixel(edges[step + 1]), view.width - RIGHT), y);
        begun = true; last = y;
      }
      pen.stroke();
    }
    if (data.budget !== null) {
      line(LEFT, toY(data.budget), view.width - RIGHT, toY(data.budget), INK, [6, 4], 1.5);
      const y = Math.max(toY(data.budget) - 8, top + 6);
      writeOver("budget " + bytes(data.budget), view.width - RIGHT - 2, y, "right");
    }
    if (data.peakStep !== null && data.peakStep >= from && data.peakStep < to) {
      const x = toPixel(middle(data.peakStep)), y = toY(data.peak) - 2;
      pen.fillStyle = INK;
      pen.beginPath(); pen.moveTo(x, y); pen.lineTo(x - 5, y - 9); pen.lineTo(x + 5, y - 9); pen.fill();
    }
  }

  function drawAxis() {
    const { bottom } = links(), room = view.width - LEFT - RIGHT, scale = edges === byStep ? 1 : perUnit;
    for (const tick of ticks(view.low / scale, view.high / scale, room / 90)) {
      if (edges === byStep && tick % 1) continue;
      line(toPixel(tick * scale), bottom, toPixel(tick * scale), bottom + 4);
      writeTick(number(tick), toPixel(tick * scale), bottom + 12);
    }
    line(LEFT, bottom, view.width - RIGHT, bottom);
    write(edges === byStep ? "step" : unit, LEFT - 14, bottom + 12, "right");
    const many = named.length > rows.length && rows.all > rows.length;
    write(many ? `${rows.length} of ${rows.all.toLocaleString("en")} tensors, by bytes × steps`
      : `${rows.length} tensor${rows.length === 1 ? "" : "s"} held here`, LEFT, bottom + 26, "left", "#444");
  }

  function chooseRows([from, to]) {
    const { top, bottom } = gantt(), most = Math.max(Math.floor((bottom - top) / ROW), 1), inside = new Set();
    for (let k = 0; k < instances; k++) if (start[k] < to && end[k] > from) inside.add(tensor[k]);
    // bytes times visible steps from the first to the last; gaps before recomputations count, as what they save
    const span = t => Math.min(end[ofTensor[t].at(-1)], to) - Math.max(start[ofTensor[t][0]], from);
    const area = new Float64Array(sizes.length);
    inside.forEach(t => { area[t] = sizes[t] * span(t); });
    const wanted = t => marked.has(t) || (cursor && cursor.tensor === t);
    rows = [...inside].sort((a, b) => wanted(b) - wanted(a) || area[b] - area[a] || rank[a] - rank[b]).slice(0, most).sort(before);
    rows.all = inside.size;
    rows.height = Math.min((bottom - top) / Math.max(rows.length, 1), 18);
  }

  function drawGantt() {
    const { top } = gantt(), height = rows.height, inner = height > 6 ? height - 2 : Math.max(height - 0.5, 1);
    rows.forEach((t, row) => {
      const y = top + row * height;
      let label = LEFT + 3;
      ofTensor[t].forEach((k, instance) => {
        const x0 = Math.max(toPixel(edges[start[k]]), LEFT), x1 = Math.min(toPixel(edges[end[k]]), view.width - RIGHT);
        if (x1 < LEFT || x0 > view.width - RIGHT) return;
        pen.fillStyle = given.has(t) ? GIVEN : fetched.has(k) ? FETCHED : instance ? AGAIN : FIRST;
        pen.fillRect(x0, y, Math.max(x1 - x0, 1), inner);
        if (marked.has(t) || (cursor && cursor.tensor === t)) {
          pen.strokeStyle = FOUND; pen.lineWidth = 2; pen.strokeRect(x0, y, Math.max(x1 - x0, 2), Math.max(inner, 2));
        }
        if (instance === 0 || label < LEFT) label = x0 + 3;
      });
      if (height >= 12) {
        const text = clipped(tensorName(t), view.width - RIGHT - label), wide = pen.measureText(text).width;
        write(text, Math.max(Math.min(label, view.width - RIGHT - wide), LEFT + 3), y + height / 2);
      }
    });
  }

  function drawMarks() {
    const { top, bottom } = profile(), end = gantt().bottom;
    for (const [step, text] of [[data.backward, "backward"], ...data.faults.map(fault => [fault[0], fault[2]])]) {
      if (step === null) continue;
      const x = toPixel(edges[Math.min(step, count)]), fault = text !== "backward";
      if (x < LEFT || x > view.width - RIGHT + 1) continue;
      line(x, fault ? TOP : top, x, fault ? end : bottom, fault ? FAULT : INK, fault ? [5, 3] : [2, 3], fault ? 2 : 1);
      const right = x > view.width - 90;
      writeOver(text, right ? x - 8 : x + 8, top + 6, right ? "right" : "left", fault ? FAULT : INK);
    }
    for (const { step } of places) {
      if (step === undefined || edges[step] < view.low || edges[step] > view.high) continue;
      const x = toPixel(middle(step));
      pen.fillStyle = FOUND;
      pen.beginPath(); pen.moveTo(x, bottom - 9); pen.lineTo(x - 4, bottom); pen.lineTo(x + 4, bottom); pen.fill();
    }
    if (cursor && edges[cursor.step] <= view.high && edges[cursor.step + 1] >= view.low) {
      line(toPixel(middle(cursor.step)), TOP, toPixel(middle(cursor.step)), end, INK, [], 1);
    }
  }

  function stepRows(step) {
    const op = steps[step], again = computes[op].length;
    const result = [["step", `${step.toLocaleString("en")}, ${bytes(memory[step])} held${host ? `, ${bytes(onHost[step])} on the host` : ""}`],
      ["op", opName(op) + (data.types[data.type[op]] ? `, ${data.types[data.type[op]]}` : "")]];
    if (data.module[op] >= 0) result.push(["module", data.modules[data.module[op]]]);
    if (clock) result.push(["time", `${duration(data.costs[op] || 0)}, from ${duration(byTime[step] + waits[step])}`]);
    else if (data.costs[op]) result.push(["cost", number(data.costs[op]) + (data.costUnit === "cost" ? "" : ` ${data.costUnit}`)]);
    if (waits[step]) result.push(["stall", waitText(step)]);
    if (again > 1) result.push(["computed", `${again} times: at ${some(computes[op])}`]);
    for (const [at, message] of data.faults) if (at === step) result.push(["fault", message]);
    return result;
  }

  /** Describe the wait before a step: it ends with a transfer. */
  function waitText(step) {
    const end = byTime[step] + waits[step], why = moved.findIndex((_, k) => begun[k] + lasts[k] === end);
    return `waits ${duration(waits[step])} before it` + (why < 0 ? "" : `, until the ${moveName(why)} ends`);
  }

  /** Describe a transfer, and how long the device waits while it is under way. */
  function moveRows(k) {
    const end = begun[k] + lasts[k];
    let waited = 0;
    for (let step = Math.max(above(byTime, begun[k]) - 1, 0); step <= count; step++) {
      const from = step < count ? byTime[step] : byTime[count] - waits[count];
      if (from >= end) break;
      waited += Math.max(Math.min(from + waits[step], end) - Math.max(from, begun[k]), 0);
    }
    return [["transfer", moveName(k)], ["bytes", exact(sizes[moved[k]])],
      ["time", `${duration(lasts[k])}, from ${duration(begun[k])} to ${duration(end)}`],
      ["stall", waited ? `the device waits ${duration(waited)} of it` : "none: the device computes all the while"]];
  }

  const some = list => (list.length > 1 ? "steps " : "step ") + list.slice(0, 6).map(k => k.toLocaleString("en")).join(", ") + (list.length > 6 ? `, … (${list.length})` : "");

  /** Describe the tensors held at a step. */
  function heldRows(step) {
    const held = [];
    for (let k = 0; k < instances; k++) if (start[k] <= step && step < end[k]) held.push(tensor[k]);
    held.sort((a, b) => rank[a] - rank[b]);
    const shown = held.slice(0, 5).map(t => `${tensorName(t)} (${bytes(sizes[t])})`).join(", ");
    return [["held", held.length ? `${held.length.toLocaleString("en")} tensor${held.length === 1 ? "" : "s"}: ${shown}${held.length > 5 ? ", …" : ""}` : "nothing"]];
  }

  /** Describe a tensor at a step: its instance, and the read for which it is held. */
  function tensorRows(t, step) {
    const mine = ofTensor[t], at = mine.findIndex(k => start[k] <= step && step < end[k]);
    const result = [["tensor", `${tensorName(t)}, ${exact(sizes[t])}`]];
    const recomputed = mine.slice(1).filter(k => !fetched.has(k)).map(k => start[k]);
    const back = mine.filter(k => fetched.has(k)).map(k => start[k]);
    if (at >= 0) {
      const k = mine[at], reads = readers[t].flatMap(op => computes[op]).filter(s => s >= start[k] && s < end[k]).sort((a, b) => a - b);
      const next = reads.find(s => s >= step);
      result.push(["held", `steps ${start[k]} to ${end[k] - 1}` + (given.has(t) ? ", a graph input" : fetched.has(k) ? ", fetched from the host" : start[k] < count ? `, written by ${opName(steps[start[k]])}` : "")]);
      result.push(["alive for", next !== undefined ? `${opName(steps[next])} at step ${next}` + (next === step ? " (now)" : `, in ${next - step} step${next - step > 1 ? "s" : ""}`)
        : given.has(t) ? "graph inputs stay to the end" : kept.has(t) && end[k] === count ? "the end: an output, or kept" : "no reader: held until it is freed"]);
      result.push(["reads", reads.length ? `${reads.length} of this instance: at ${some(reads)}` : "none of this instance"]);
    } else {
      result.push(["held", `not at step ${step}; from ${some(mine.map(k => start[k]))}`]);
    }
    result.push(["recomputed", recomputed.length ? `${recomputed.length} time${recomputed.length > 1 ? "s" : ""}: at ${some(recomputed)}` : "never"]);
    if (back.length) result.push(["fetched", `${back.length} time${back.length > 1 ? "s" : ""}: before ${some(back)}`]);
    const out = LINKS[0].of.filter(k => moved[k] === t);
    if (out.length) result.push(["written", out.map(k => `from ${duration(begun[k])} to ${duration(begun[k] + lasts[k])}`).join(", ")]);
    return result;
  }

  function describeAt(step, t) {
    cursor = { step, tensor: t };
    describe(t === undefined ? [...stepRows(step), ...heldRows(step)] : [...tensorRows(t, step), ...stepRows(step)]);
    request();
  }

  /** Return the transfer under a point, or the closest within some pixels. */
  function moveAt(px, py) {
    const { top, bottom } = links(), row = Math.floor((py - top) / LINK);
    if (py < top || py >= bottom || !LINKS[row]) return undefined;
    const away = k => Math.max(toPixel(atTime(begun[k])) - px, px - toPixel(atTime(begun[k] + lasts[k])), 0);
    const { of, starts } = LINKS[row], x = toValue(px);
    const time = edges === byTime ? x : byTime[stepAt(px)] + (x - stepAt(px)) * (byTime[stepAt(px) + 1] - byTime[stepAt(px)]);
    const near = above(starts, time), best = of.slice(Math.max(near - 1, 0), near + 1).sort((a, b) => away(a) - away(b))[0];
    return best !== undefined && away(best) < 6 ? best : undefined;
  }

  function describeMove(move, step) {
    cursor = { step, move };
    describe([...moveRows(move), ...stepRows(step)]);
    request();
  }

  function reveal(step) {
    if (edges[step] < view.low || edges[step + 1] > view.high) {
      const half = (view.high - view.low) / 2;
      show(middle(step) - half, middle(step) + half);
    }
  }

  element("keys").textContent = "Wheel or pinch: zoom. Drag: move. Keys on the chart: ← → step, ↑ ↓ tensor, + − zoom, 0 all, P peak, / search, Enter next match.";
  const entries = [[FIRST, "first compute"], [AGAIN, "recomputation"]];
  if (fetched.size) entries.push([FETCHED, "fetched from the host"]);
  if (LINKS[0].of.length) entries.push([GREY, "written to the host"]);
  if (waits.some(wait => wait)) entries.push([FAULT + "33", "the device waits"]);
  if (given.size) entries.push([GIVEN, "graph input"]);
  if (data.reference) entries.push([INK, "line: each op computed once"]);
  legend(entries);
  if (byTime[count] > 0) {
    const word = timed ? "time" : "cost";
    const toggle = button(timed ? "axis: time" : "axis: steps", `steps or ${word}`, () => {
      const [from, to] = visible();
      edges = edges === byStep ? byTime : byStep;
      toggle.textContent = edges === byStep ? "axis: steps" : `axis: ${word}`;
      show(edges[from], edges[to]);
    });
  }
  if (host) canvas.classList.add("tall");
  if (data.peakStep !== null) button("peak", "go to the peak ( P )", () => picture.key("p"));
  if (data.faults.length) button("fault", "go to the first fault", () => { const k = Math.min(data.faults[0][0] ?? count, count - 1); if (k >= 0) { describeAt(k); reveal(k); } });

  if (data.peakStep !== null) describeAt(data.peakStep);
  return {
    extent: () => [edges[0], Math.max(edges[count], edges[0] + 1e-9)],
    closest: () => Math.max((edges[count] - edges[0]) * Math.min(6 / Math.max(count, 1), 1), 1e-9),
    draw() {
      const range = visible();
      chooseRows(range);
      drawBands(range); drawProfile(range);
      if (host) drawHost(range);
      if (clock && moved.length) drawLinks(range);
      drawAxis(); drawGantt(); drawMarks();
    },
    point(px, py) {
      if (!count) return;
      const move = moveAt(px, py);
      if (move !== undefined) return describeMove(move, stepAt(px));
      const row = Math.floor((py - gantt().top) / rows.height);
      describeAt(stepAt(px), row >= 0 && row < rows.length ? rows[row] : undefined);
    },
    key(name) {
      if (!count) return false;
      const at = cursor ?? { step: visible()[0], tensor: undefined };
      if (name === "ArrowLeft" || name === "ArrowRight") {
        const step = Math.min(Math.max(at.step + (name === "ArrowLeft" ? -1 : 1), 0), count - 1);
        describeAt(step, at.tensor);
        reveal(step);
      } else if (name === "ArrowUp" || name === "ArrowDown") {
        const held = rows.filter(t => ofTensor[t].some(k => start[k] <= at.step && at.step < end[k]));
        const next = held.indexOf(at.tensor) + (name === "ArrowUp" ? -1 : 1);
        describeAt(at.step, at.tensor === undefined && name === "ArrowUp" ? held.at(-1) : held[next]);
      } else if (name === "p" && data.peakStep !== null) {
        describeAt(data.peakStep);
        reveal(data.peakStep);
      } else return false;
      return true;
    },
    /** Find ops and tensors by name; return the number of matches. */
    find(query) {
      const wanted = query.toLowerCase();
      places = []; place = -1; marked = new Set();
      if (wanted) {
        named.forEach(t => {
          if (tensorName(t).toLowerCase().includes(wanted)) { marked.add(t); places.push({ tensor: t, at: start[ofTensor[t][0]] }); }
        });
        computes.forEach((at, op) => {
          if (at.length && opName(op).toLowerCase().includes(wanted)) places.push(...at.map(step => ({ step, at: step })));
        });
        places.sort((a, b) => a.at - b.at);
      }
      request();
      return places.length;
    },
    next() {
      if (!places.length) return 0;
      place = (place + 1) % places.length;
      const step = Math.min(places[place].at, count - 1);
      if (step >= 0) { describeAt(step, places[place].tensor); reveal(step); }
      return place + 1;
    },
  };
}
