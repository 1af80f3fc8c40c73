/** Curves, marks and bounds in panels, one below another, over one axis. */
function chartPicture(data) {
  const GAP = 44, marks = [];  // pixels below a panel; all marks: panel, series, x, y, kind, rows
  data.panels.forEach((panel, p) => panel.series.forEach((series, s) => {
    for (const [x, y, kind, rows] of series.marks) marks.push({ panel: p, series: s, x, y, kind, rows });
  }));
  const xs = data.panels.flatMap(panel => panel.series.flatMap(series => [...series.line, ...series.bound, ...series.marks].map(at => at[0])));
  const positive = xs.filter(x => x > 0), least = positive.length ? Math.min(...positive) : 1;
  let log = data.log && positive.length > 0, cursor = null, matched = null, places = [], place = -1;
  const scaled = x => log ? Math.log10(Math.max(x, least)) : x;
  const toX = x => toPixel(scaled(x));

  const box = p => {
    const height = view.height / data.panels.length;
    return { top: p * height + 20, bottom: (p + 1) * height - GAP };
  };
  const ranges = data.panels.map(panel => {
    const ys = panel.series.flatMap(series => [...series.line, ...series.bound, ...series.marks].map(at => at[1]).filter(y => y !== null));
    const low = panel.zero ? 0 : Math.min(...ys), high = Math.max(...ys), room = 0.07 * (high - low) || Math.abs(high) * 0.05 || 1;
    return ys.length ? [low - room, high + room] : [0, 1];
  });
  const toY = (p, y) => {
    const { top, bottom } = box(p), [low, high] = ranges[p];
    return bottom - (y - low) / (high - low) * (bottom - top);
  };
  // marks without a value lie on the axis, a row for each method
  const markY = mark => mark.y === null ? box(mark.panel).bottom - 6 - 9 * (mark.series % 4) : toY(mark.panel, mark.y);
  const faded = (panel, s) => matched && !matched.has(data.panels[panel].series[s].name);

  function steps(p, places, before) {
    pen.beginPath();
    places.forEach(([x, y], k) => {
      if (!k) { pen.moveTo(toX(x), toY(p, y)); return; }
      if (before) pen.lineTo(toX(places[k - 1][0]), toY(p, y)); else pen.lineTo(toX(x), toY(p, places[k - 1][1]));
      pen.lineTo(toX(x), toY(p, y));
    });
    pen.stroke();
  }

  function shape(marker, x, y, r) {
    const corners = { s: [[-1, -1], [1, -1], [1, 1], [-1, 1]], "^": [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]], v: [[0, 1.2], [1.1, -0.9], [-1.1, -0.9]],
      D: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]] }[marker];
    pen.beginPath();
    if (corners) corners.forEach(([a, b], k) => k ? pen.lineTo(x + r * a, y + r * b) : pen.moveTo(x + r * a, y + r * b));
    else pen.arc(x, y, r, 0, 2 * Math.PI);
    pen.closePath();
  }

  function drawAxes(panel, p) {
    const { top, bottom } = box(p), [low, high] = ranges[p];
    for (const tick of ticks(low, high, 5)) {
      line(LEFT, toY(p, tick), view.width - RIGHT, toY(p, tick), PALE);
      write(number(tick), LEFT - 5, toY(p, tick), "right");
    }
    for (const tick of log ? decades() : ticks(view.low, view.high, (view.width - LEFT) / 100)) {
      line(toX(tick), bottom, toX(tick), bottom + 4);
      write(number(tick), toX(tick), bottom + 12, "center");
    }
    line(LEFT, bottom, view.width - RIGHT, bottom);
    write(clipped(`${panel.label}${panel.title ? ": " + panel.title : ""}`, view.width - 10), 4, top - 11);
    write(data.axis, view.width - RIGHT, bottom + 27, "right", "#444");
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
    panel.series.forEach((series, s) => {
      pen.globalAlpha = faded(p, s) ? 0.15 : 1;
      pen.strokeStyle = series.colour; pen.setLineDash([]);
      pen.lineWidth = Math.max(4 - 0.8 * s, 1.5);  // lines of methods that agree coincide: draw earlier ones wider
      steps(p, series.line, false);
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

  const names = new Map(data.panels.flatMap(panel => panel.series.map(series => [series.name, series.colour])));
  legend([...names].map(([name, colour]) => [colour, name]));
  element("keys").textContent = data.note + " Wheel or pinch: zoom. Drag: move. Keys on the chart: ← → marks of a method, ↑ ↓ method, + − zoom, 0 all, / search.";
  const toggle = positive.length ? button(log ? "axis: log" : "axis: linear", "linear or logarithmic", () => {
    log = !log;
    toggle.textContent = log ? "axis: log" : "axis: linear";
    all();
  }) : null;
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
