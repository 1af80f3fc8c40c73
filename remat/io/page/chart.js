/** Curves, marks and bounds in panels, one below another, over one axis; heights are values, or gaps to the best bound. */
function chartPicture(data) {
  const GAP = 44, RAISE = 2.2, marks = [];  // pixels below a panel and between lines that agree; marks of all panels
  data.panels.forEach((panel, p) => panel.series.forEach((series, s) => {
    for (const [x, y, kind, rows] of series.marks) marks.push({ panel: p, series: s, x, y, kind, rows });
  }));
  const GLYPHS = { o: "●", s: "■", "^": "▲", v: "▼", D: "◆", P: "✚", X: "✖" };
  let gapped = data.panels.some(panel => panel.best);
  const xs = data.panels.flatMap(panel => panel.series.flatMap(series => [...series.line, ...series.bound, ...series.marks].map(at => at[0])));
  const positive = xs.filter(x => x > 0), least = positive.length ? Math.min(...positive) : 1;
  let log = data.log && positive.length > 0, cursor = null, matched = null, places = [], place = -1;
  const scaled = x => log ? Math.log10(Math.max(x, least)) : x;
  const toX = x => toPixel(scaled(x));

  const box = p => {
    const height = view.height / data.panels.length;
    return { top: p * height + 20, bottom: (p + 1) * height - GAP };
  };
  const valuesOf = panel => panel.series.flatMap(series => [...series.line, ...series.bound, ...series.marks].map(at => at[1]).filter(y => y !== null));
  /** Return the gap of a value to the panel's best bound, in % of it where it is not 0. */
  const gapOf = ({ best }, y) => best.whole ? 100 * (y - best.value) / best.whole : y - best.value;
  // gaps below a ten-thousandth of the largest do not stretch the axis, nor do errors of rounding
  const leasts = data.panels.map(panel => {
    const gaps = panel.best ? valuesOf(panel).map(y => Math.abs(gapOf(panel, y))) : [];
    const seen = gaps.filter(gap => gap > Math.max(1e-4 * Math.max(...gaps), 1e-7));
    return seen.length ? 10 ** Math.floor(Math.log10(Math.min(...seen))) : 1;
  });
  /** Return the place of a gap on a scale that is linear around 0 and logarithmic beyond. */
  const gapPlace = (p, gap) => Math.abs(gap) <= leasts[p] ? gap / leasts[p] : Math.sign(gap) * (1 + Math.log10(Math.abs(gap) / leasts[p]));
  const heightOf = (p, y) => gapped ? gapPlace(p, gapOf(data.panels[p], y)) : y;
  let ranges = [];
  function setRanges() {
    ranges = data.panels.map((panel, p) => {
      const ys = valuesOf(panel).map(y => heightOf(p, y));
      if (!ys.length) return [0, 1];
      const low = gapped ? Math.min(...ys, -1) : panel.zero ? 0 : Math.min(...ys), high = Math.max(...ys, ...(gapped ? [1] : []));
      const room = 0.07 * (high - low) || Math.abs(high) * 0.05 || 1;
      return [low - room, high + room * (gapped ? 1 + panel.series.length / 4 : 1)];
    });
  }
  setRanges();
  const atPlace = (p, place) => {
    const { top, bottom } = box(p), [low, high] = ranges[p];
    return bottom - (place - low) / (high - low) * (bottom - top);
  };
  const toY = (p, y, s = 0) => atPlace(p, heightOf(p, y)) - (gapped ? RAISE * s : 0);
  // marks without a value lie on the axis, a row for each method
  const markY = mark => mark.y === null ? box(mark.panel).bottom - 6 - 9 * (mark.series % 4) : toY(mark.panel, mark.y, mark.series);
  const faded = (panel, s) => matched && !matched.has(data.panels[panel].series[s].name);

  function steps(p, places, before, s) {
    pen.beginPath();
    places.forEach(([x, y], k) => {
      if (!k) { pen.moveTo(toX(x), toY(p, y, s)); return; }
      if (before) pen.lineTo(toX(places[k - 1][0]), toY(p, y, s)); else pen.lineTo(toX(x), toY(p, places[k - 1][1], s));
      pen.lineTo(toX(x), toY(p, y, s));
    });
    pen.stroke();
  }

  function shape(marker, x, y, r) {
    const plus = [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]];
    const turned = plus.map(([a, b]) => [0.8 * (a - b), 0.8 * (a + b)]);
    const corners = { s: [[-1, -1], [1, -1], [1, 1], [-1, 1]], "^": [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]], v: [[0, 1.2], [1.1, -0.9], [-1.1, -0.9]],
      D: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]], P: plus, X: turned }[marker];
    pen.beginPath();
    if (corners) corners.forEach(([a, b], k) => k ? pen.lineTo(x + r * a, y + r * b) : pen.moveTo(x + r * a, y + r * b));
    else pen.arc(x, y, r, 0, 2 * Math.PI);
    pen.closePath();
  }

  function drawAxes(panel, p) {
    const { top, bottom } = box(p);
    for (const [place, text] of gapped ? gapTicks(p) : ticks(...ranges[p], 5).map(tick => [tick, number(tick)])) {
      line(LEFT, atPlace(p, place), view.width - RIGHT, atPlace(p, place), gapped && !place ? INK : PALE);
      write(text, LEFT - 5, atPlace(p, place), "right");
    }
    for (const tick of log ? decades() : ticks(view.low, view.high, (view.width - LEFT) / 100)) {
      line(toX(tick), bottom, toX(tick), bottom + 4);
      writeTick(number(tick), toX(tick), bottom + 12);
    }
    line(LEFT, bottom, view.width - RIGHT, bottom);
    const label = gapped ? panel.best.label : panel.label;
    write(clipped(`${label}${panel.title ? ": " + panel.title : ""}`, view.width - 10), 4, top - 11);
    write(data.axis, view.width - RIGHT, bottom + 27, "right", "#444");
  }

  /** Return places and texts of 0 and of powers of ten within a panel, at most about seven. */
  function gapTicks(p) {
    const [low, high] = ranges[p], every = Math.ceil((high - low) / 7), result = [[0, "0"]];
    for (let k = 1; k <= Math.max(high, -low); k++) {
      if ((k - 1) % every) continue;
      const size = number(leasts[p] * 10 ** (k - 1));
      if (k <= high) result.push([k, `+${size}`]);
      if (-k >= low) result.push([-k, `−${size}`]);
    }
    return result;
  }

  function decades() {
    const result = [], wide = view.high - view.low;
    for (let power = Math.floor(view.low); power <= view.high; power++) {
      for (const digit of wide < 1.5 ? [1, 2, 3, 5, 7] : wide < 4 ? [1, 3] : [1]) {
        const value = digit * 10 ** power;
        if (Math.log10(value) >= view.low && Math.log10(value) <= view.high) result.push(value);
      }
    }
    return result;
  }

  function drawPanel(panel, p) {
    const { top, bottom } = box(p);
    pen.save();
    pen.beginPath(); pen.rect(LEFT, top - 4, view.width - LEFT - RIGHT, bottom - top + 8); pen.clip();
    if (panel.below !== null && panel.below !== undefined) {
      pen.fillStyle = PALETTE.RULED_OUT;
      pen.fillRect(LEFT, top, Math.max(toX(panel.below) - LEFT, 0), bottom - top);
    }
    if (gapped) {
      pen.fillStyle = PALETTE.RULED_OUT;
      pen.fillRect(LEFT, atPlace(p, 0), view.width - LEFT - RIGHT, bottom - atPlace(p, 0));
      if (valuesOf(panel).length) write(`best bound ${panel.best.text}: no schedule below`, LEFT + 4, atPlace(p, 0) + 9, "left", GREY);
    }
    panel.series.forEach((series, s) => {
      pen.globalAlpha = faded(p, s) ? 0.15 : 1;
      pen.strokeStyle = series.colour; pen.setLineDash([]);
      pen.lineWidth = gapped ? 1.8 : Math.max(4 - 0.8 * s, 1.5);  // lines that coincide: draw earlier ones wider
      steps(p, series.line, false, s);
      pen.lineWidth = 1.3; pen.setLineDash([6, 4]);
      steps(p, series.bound, series.before);
      pen.setLineDash([]);
    });
    marks.filter(mark => mark.panel === p).forEach(mark => {
      const series = panel.series[mark.series], x = toX(mark.x), y = markY(mark), chosen = mark === cursor;
      pen.globalAlpha = faded(p, mark.series) ? 0.15 : 1;
      pen.strokeStyle = chosen ? INK : series.colour; pen.lineWidth = chosen ? 3 : 1.8;
      if (mark.kind === 2) {
        pen.beginPath();
        pen.moveTo(x - 4, y - 4); pen.lineTo(x + 4, y + 4); pen.moveTo(x + 4, y - 4); pen.lineTo(x - 4, y + 4);
      } else {
        shape(series.marker, x, y, chosen ? 6 : 4.5);
        pen.fillStyle = mark.kind === 1 ? series.colour : "#fff";
        pen.fill();
      }
      pen.stroke();
    });
    pen.restore();
  }

  function choose(mark) {
    cursor = mark;
    describe([["method", data.panels[mark.panel].series[mark.series].name], ...mark.rows]);
    request();
  }

  const near = (px, py) => marks.reduce((best, mark) => {
    const far = (toX(mark.x) - px) ** 2 + (markY(mark) - py) ** 2;
    return far < best[0] ? [far, mark] : best;
  }, [Infinity, null])[1];

  const names = new Map(data.panels.flatMap(panel => panel.series.map(series => [series.name, series])));
  legend([...names].map(([name, { colour, marker }]) => [colour, name, GLYPHS[marker] ?? "●"]));
  element("keys").textContent = data.note + " Wheel or pinch: zoom. Drag: move. Keys on the chart: ← → marks of a method, ↑ ↓ method, + − zoom, 0 all, / search.";
  const toggle = positive.length ? button(log ? "axis: log" : "axis: linear", "linear or logarithmic", () => {
    log = !log;
    toggle.textContent = log ? "axis: log" : "axis: linear";
    all();
  }) : null;
  if (gapped) {
    const heights = button("heights: gap", "gap to the best bound, or value", () => {
      gapped = !gapped;
      heights.textContent = gapped ? "heights: gap" : "heights: value";
      setRanges();
      request();
    });
  }
  if (marks.length) choose(marks.find(mark => mark.y !== null) ?? marks[0]);

  return {
    extent() {
      const ends = xs.map(scaled), low = xs.length ? Math.min(...ends) : 0, high = xs.length ? Math.max(...ends) : 1;
      const room = 0.03 * (high - low) || 0.5;
      return [low - room, high + room];
    },
    closest() { const [low, high] = this.extent(); return (high - low) / 1000; },
    draw() { data.panels.forEach((panel, p) => { drawAxes(panel, p); drawPanel(panel, p); }); },
    point(px, py) { const mark = near(px, py); if (mark) choose(mark); },
    key(name) {
      if (!cursor || !name.startsWith("Arrow")) return false;
      const upright = name === "ArrowUp" || name === "ArrowDown", forward = name === "ArrowRight" || name === "ArrowDown";
      const key = mark => `${mark.panel} ${mark.series}`;
      const group = upright ? [...new Set(marks.map(key))] : marks.filter(mark => key(mark) === key(cursor));
      const at = group.indexOf(upright ? key(cursor) : cursor) + (forward ? 1 : -1);
      const found = upright ? marks.find(mark => key(mark) === group[at]) : group[at];
      if (found) {
        choose(found);
        if (scaled(found.x) < view.low || scaled(found.x) > view.high) show(scaled(found.x) - (view.high - view.low) / 2, scaled(found.x) + (view.high - view.low) / 2);
      }
      return true;
    },
    find(query) {
      const wanted = query.toLowerCase(), found = [...names.keys()].filter(name => name.toLowerCase().includes(wanted));
      matched = wanted ? new Set(found) : null;
      places = wanted ? marks.filter(mark => matched.has(data.panels[mark.panel].series[mark.series].name)) : [];
      place = -1;
      request();
      return places.length;
    },
    next() {
      if (!places.length) return 0;
      place = (place + 1) % places.length;
      choose(places[place]);
      return place + 1;
    },
  };
}
