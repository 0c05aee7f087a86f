// SPDX-License-Identifier: MIT OR Apache-2.0
// The picture as a file: the part in view, all rows that are shown, with names, axis, metering
// lines and legend. One painter makes shapes; SVG keeps them as they are, and PNG draws them onto a
// canvas. Their number is bounded by the picture's width and rows, as on the screen.

const EXPORT = Object.freeze({ margin: 16, gutter: 220, head: 46, axis: 34, legend: 40 });
const MOST_HEIGHT = 16_000;

function escapeXml(text) {
  return String(text).replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c])
    // Characters that XML 1.0 cannot contain.
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, '\ufffd');
}

const fixed = (value) => String(Math.round(value * 100) / 100);

/** Shapes as SVG. */
class SvgPen {
  constructor(width, height, theme) {
    this.parts = [];
    this.patterns = new Map();
    this.width = width;
    this.height = height;
    this.theme = theme;
  }

  rect(x, y, width, height, fill) {
    this.parts.push(`<rect x="${fixed(x)}" y="${fixed(y)}" width="${fixed(width)}" height="${fixed(height)}" fill="${fill}"/>`);
  }

  polygon(points, fill) {
    this.parts.push(`<polygon points="${points.map(([x, y]) => `${fixed(x)},${fixed(y)}`).join(' ')}" fill="${fill}"/>`);
  }

  line(points, stroke, width) {
    this.parts.push(`<polyline points="${points.map(([x, y]) => `${fixed(x)},${fixed(y)}`).join(' ')}" fill="none" stroke="${stroke}" stroke-width="${width}"/>`);
  }

  text(text, x, y, fill, { size = 11.5, weight = 400, align = 'start' } = {}) {
    this.parts.push(`<text x="${fixed(x)}" y="${fixed(y)}" fill="${fill}" font-size="${size}" font-weight="${weight}" text-anchor="${align}">${escapeXml(text)}</text>`);
  }

  /** The fill of a state: a colour, or a pattern that is defined once. */
  fillOf(state) {
    const style = STATE_FILLS[state];
    const [base, ink] = style.colors.map((name) => this.theme.color(name));
    if (!style.lines) return base;
    const id = `s${state}`;
    this.patterns.set(id, `<pattern id="${id}" width="8" height="8" patternUnits="userSpaceOnUse"><rect width="8" height="8" fill="${base}"/><path d="${style.lines}" stroke="${ink}" stroke-width="${style.ink}" fill="none"/></pattern>`);
    return `url(#${id})`;
  }

  finish() {
    const { width, height, theme } = this;
    return `<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${escapeXml(theme.font)}"><defs>${[...this.patterns.values()].join('')}</defs><rect width="${width}" height="${height}" fill="${theme.color('surface')}"/>\n${this.parts.join('\n')}\n</svg>\n`;
  }
}

/** The same shapes on a canvas. */
class CanvasPen {
  constructor(width, height, theme, scale) {
    this.canvas = document.createElement('canvas');
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.context = this.canvas.getContext('2d');
    this.context.scale(scale, scale);
    this.theme = theme;
    this.fills = new Map();
    this.rect(0, 0, width, height, theme.color('surface'));
  }

  rect(x, y, width, height, fill) {
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, width, height);
  }

  #path(points) {
    this.context.beginPath();
    points.forEach(([x, y], i) => (i ? this.context.lineTo(x, y) : this.context.moveTo(x, y)));
  }

  polygon(points, fill) {
    this.#path(points);
    this.context.fillStyle = fill;
    this.context.fill();
  }

  line(points, stroke, width) {
    this.#path(points);
    this.context.strokeStyle = stroke;
    this.context.lineWidth = width;
    this.context.stroke();
  }

  text(text, x, y, fill, { size = 11.5, weight = 400, align = 'start' } = {}) {
    const { context } = this;
    context.fillStyle = fill;
    context.font = `${weight} ${size}px ${this.theme.font}`;
    context.textAlign = { start: 'left', middle: 'center', end: 'right' }[align];
    context.textBaseline = 'alphabetic';
    context.fillText(text, x, y);
  }

  fillOf(state) {
    const style = STATE_FILLS[state];
    const [base, ink] = style.colors.map((name) => this.theme.color(name));
    if (!style.lines) return base;
    if (!this.fills.has(state)) {
      const tile = new OffscreenCanvas(8, 8);
      const context = tile.getContext('2d');
      context.fillStyle = base;
      context.fillRect(0, 0, 8, 8);
      context.strokeStyle = ink;
      context.lineWidth = style.ink;
      context.stroke(new Path2D(style.lines));
      this.fills.set(state, this.context.createPattern(tile, 'repeat'));
    }
    return this.fills.get(state);
  }
}

const STATE_FILLS = {
  [STATE.ABSENT]: { colors: ['surface', 'surface'] },
  [STATE.RUNNING]: { colors: ['running', 'running'] },
  [STATE.BLOCKED]: { colors: ['blocked', 'blocked'] },
  [STATE.RUNNABLE]: { colors: ['runnable', 'runnable-line'], lines: 'M-2 2 2-2M-2 10 10-2M6 10 10 6', ink: 2 },
  [STATE.PREEMPTED]: { colors: ['preempted', 'preempted-line'], lines: 'M-2 6 2 10M-2-2 10 10M6-2 10 2', ink: 2 },
  [STATE.UNKNOWN]: { colors: ['unknown', 'unknown-line'], lines: 'M-2 10 10-2M-2-2 10 10', ink: 0.8 },
  [STATE.MISSED]: { colors: ['missed', 'missed-line'], lines: 'M3 0V8M7 0V8', ink: 2 },
};

/** Paints the part in view with a pen of either kind. */
class PicturePainter {
  constructor(timeline, rows, report) {
    this.timeline = timeline;
    this.rows = rows;
    this.report = report;
    const style = getComputedStyle(document.documentElement);
    this.theme = { font: style.getPropertyValue('--font').trim(), color: (name) => style.getPropertyValue(`--${name}`).trim() };
    this.plotWidth = timeline.width;
    this.width = EXPORT.margin * 2 + EXPORT.gutter + this.plotWidth;
    this.left = EXPORT.margin + EXPORT.gutter;
    this.top = EXPORT.margin + EXPORT.head + EXPORT.axis;
    this.shown = rows.visible.filter((row) => row.top + row.height <= MOST_HEIGHT);
    const last = this.shown[this.shown.length - 1];
    this.bottom = this.top + (last ? last.top + last.height : 0);
    this.height = this.bottom + EXPORT.legend + EXPORT.margin;
  }

  paint(pen) {
    this.pen = pen;
    this.columns = new Columns(this.plotWidth);
    this.#head();
    this.#axis();
    for (const row of this.shown) this.#row(row, this.top + row.top);
    this.#wakes();
    this.#meter();
    this.#names();
    this.#legend();
    const left = this.rows.visible.length - this.shown.length;
    if (left) pen.text(`and ${plural(left, 'more row')}`, EXPORT.margin, this.bottom + 14, this.theme.color('quiet'));
    return pen;
  }

  #x(t) {
    return this.left + this.timeline.xOf(t);
  }

  #head() {
    const { pen, theme, timeline } = this;
    const { from, to } = timeline.view;
    pen.text(list(this.report.command).map(quoteArgument).join(' ').slice(0, 140) || 'A run without a name', EXPORT.margin, EXPORT.margin + 14, theme.color('text'), { size: 14, weight: 600 });
    pen.text(`${formatDuration(to - from)} from ${formatExact(Math.round(from))}, axis in ms`, EXPORT.margin, EXPORT.margin + 34, theme.color('quiet'), { size: 12 });
  }

  #axis() {
    const { pen, theme, timeline } = this;
    const y = this.top;
    for (const tick of timeline.ticks.major) {
      const x = this.#x(tick);
      pen.rect(x, y - 6, 1, this.bottom - y + 6, theme.color('grid'));
      const text = formatMs(tick, timeline.ticks.decimals);
      const half = text.length * 3.4;
      pen.text(text, Math.min(Math.max(x, this.left + half), this.left + this.plotWidth - half), y - 12, theme.color('text'), { align: 'middle' });
    }
  }

  /** Adjacent columns of one kind are one rectangle. */
  #runs(each) {
    const { kind } = this.columns;
    let x = 0;
    while (x < this.plotWidth) {
      let end = x + 1;
      while (end < this.plotWidth && kind[end] === kind[x] && (kind[x] === HIDDEN || this.columns.at[end] === this.columns.at[x])) end += 1;
      each(kind[x], x, end);
      x = end;
    }
  }

  #row(row, y) {
    const { pen, theme, columns, timeline } = this;
    const { from } = timeline.view;
    const { perPixel } = timeline;
    if (row.kind === 'process' || row.kind === 'run') {
      pen.rect(EXPORT.margin, y, this.width - 2 * EXPORT.margin, row.height, theme.color(row.kind === 'run' ? 'border' : 'line'));
      return;
    }
    const top = y + BAR_INSET;
    const height = row.height - 2 * BAR_INSET;
    const states = (intervals, fill, barTop = top, barHeight = height) => {
      columns.fromIntervals(intervals, from, perPixel, 60);
      this.#runs((kind, x, end) => {
        if (kind === HIDDEN) this.#hidden(x, end, barTop, barHeight, fill);
        else if (kind !== STATE.ABSENT && kind !== EDGE) pen.rect(this.left + x, barTop, end - x, barHeight, fill(kind, columns.at[x]));
      });
    };
    const labels = (nameOf, color, middle = y + row.height / 2) => {
      const { wide } = columns;
      for (let i = 0; i < wide.length; i += 3) {
        const name = nameOf(wide[i + 2]);
        if (name && name.length * 6.4 + 10 < wide[i + 1] - wide[i]) pen.text(name, this.left + wide[i] + 5, middle + 4, color(wide[i + 2]), { size: 11 });
      }
    };
    if (row.kind === 'thread') {
      states(row.intervals, (state) => pen.fillOf(state));
      labels((at) => (row.intervals.cpus[at] === NO_CPU ? '' : `CPU ${row.intervals.cpus[at]}`), () => theme.color('on-running'));
    } else if (row.kind === 'cpu') {
      const { owners } = row.cpu;
      states(row.cpu.intervals, (state, at) => (at < 0 ? pen.fillOf(state) : theme.color(`owner-${owners[at] % OWNERS}`)));
      labels((at) => row.run.threads[owners[at]].comm, (at) => timeline.theme.onOwner(owners[at]));
    } else if (row.kind === 'sensor' && row.mode === 'bars') {
      let level = null;
      states(row.jobs.intervals, (state, at) => {
        level ??= jobLevel(row, columns, from, perPixel);
        return theme.color(`level-${at < 0 ? LEVELS - 1 : level(columns.at.indexOf(at))}`);
      });
    } else if (row.kind === 'sensor' && row.mode === 'spans') {
      this.rows.spansOf(row).lanes.forEach((lane, index) => {
        const laneTop = top + index * LANE_STEP;
        states(lane.intervals, () => theme.color('mark'), laneTop, LANE_HEIGHT);
        labels((at) => spanText(row, lane.members[at]), () => timeline.theme.onMark, laneTop + LANE_HEIGHT / 2);
        if (lane.cpu !== null) pen.text(`CPU ${lane.cpu}`, this.left + 4, top + index * LANE_STEP + LANE_HEIGHT - 3, theme.color('quiet'), { size: 10 });
      });
    } else if (row.kind === 'sensor' && row.mode === 'graph') {
      this.#graph(row, top, height);
    } else if (row.kind === 'sensor') {
      this.#marks(row, top, height);
    }
    if (row.gaps) {
      columns.fromGaps(row.gaps, from, perPixel, 3);
      columns.at.fill(0);
      this.#runs((kind, x, end) => {
        if (kind === STATE.MISSED) pen.rect(this.left + x, top, end - x, height, pen.fillOf(STATE.MISSED));
      });
    }
  }

  /** Hidden switches: the shares of the states stacked, below a serrated edge. */
  #hidden(x, end, top, height, fill) {
    const { pen, columns } = this;
    const bottom = top + height;
    const edge = [];
    const cut = (i) => (end - x < 6 ? 5 : 5 * Math.abs(2 * ((i % 6) / 6) - 1));
    let floor = Array.from({ length: end - x }, () => bottom);
    for (const state of Strip.ORDER) {
      const ceiling = floor.map((y, i) => Math.max(top + cut(x + i), y - columns.shares[(x + i) * STATES + state] * height));
      if (ceiling.some((y, i) => floor[i] - y > 0.05)) {
        edge.length = 0;
        ceiling.forEach((y, i) => edge.push([this.left + x + i, y], [this.left + x + i + 1, y]));
        for (let i = floor.length - 1; i >= 0; i -= 1) edge.push([this.left + x + i + 1, floor[i]], [this.left + x + i, floor[i]]);
        pen.polygon(edge, fill(state, -1));
      }
      floor = ceiling;
    }
  }

  #graph(row, top, height) {
    const { pen, columns, theme, timeline } = this;
    const { series } = row.elements.fields[row.field];
    columns.fromSeries(row.elements, series, timeline.view.from, timeline.perPixel, row.run.extent);
    const low = Math.min(0, series.low);
    const place = (value) => top + height * (1 - (value - low) / (series.high - low || 1));
    const line = [];
    for (let x = 0; x < this.plotWidth; x += 1) {
      if (Number.isNaN(columns.last[x])) continue;
      const before = line.length ? line[line.length - 1][1] : null;
      const at = this.left + x;
      if (before !== null && columns.count[x] && place(columns.last[x]) !== before) line.push([at, before]);
      if (columns.count[x] > 1) line.push([at, place(columns.high[x])], [at, place(columns.low[x])]);
      const isEnd = x === this.plotWidth - 1 || Number.isNaN(columns.last[x + 1]);
      if (columns.count[x] || !line.length || isEnd) line.push([at, place(columns.last[x])]);
    }
    if (!line.length) return;
    pen.polygon([[line[0][0], top + height], ...line, [line[line.length - 1][0], top + height]], theme.color('mark-soft'));
    pen.line(line, theme.color('mark'), 1.2);
  }

  #marks(row, top, height) {
    const { pen, columns, theme, timeline } = this;
    columns.fromElements(row.elements, timeline.view.from, timeline.perPixel);
    const { count, most } = columns;
    for (let x = 0; x < this.plotWidth; x += 1) {
      if (!count[x]) continue;
      const fill = count[x] === 1 ? 1 : 0.45 + (0.55 * Math.log(count[x])) / Math.log(Math.max(2, most));
      pen.rect(this.left + x, top + height * (1 - fill), 1.2, height * fill, theme.color(count[x] === 1 ? 'mark' : 'mark-dense'));
    }
  }

  #wakes() {
    const { timeline, pen, theme } = this;
    const { view } = timeline;
    if (!view.showWakes) return;
    const arrows = [];
    for (const row of this.shown.filter((one) => one.kind === 'thread')) {
      const { intervals } = row;
      const end = Math.min(intervals.count, lowerBound(intervals.starts, view.to));
      for (let i = lowerBound(intervals.starts, view.from); i < end && arrows.length <= this.plotWidth / PIXELS_PER_ARROW; i += 1) {
        const reason = intervals.states[i] === STATE.RUNNABLE ? intervals.reasonAt(i) : null;
        const waker = reason?.[0] === 'woken' ? row.run.threadAt(reason[1], intervals.starts[i]) : null;
        const source = waker && this.rows.ofThread(row.run, waker);
        if (source && source !== row) arrows.push([intervals.starts[i], source, row]);
      }
    }
    // As on the screen: all arrows, or none.
    if (arrows.length > this.plotWidth / PIXELS_PER_ARROW) return;
    for (const [t, source, row] of arrows) {
      const x = this.#x(t);
      const [y0, y1] = [this.top + source.top + source.height / 2, this.top + row.top];
      const target = y0 < y1 ? y1 + BAR_INSET : y1 + row.height - BAR_INSET;
      const neck = target - 5 * (target >= y0 ? 1 : -1);
      pen.line([[x, y0], [x, neck]], theme.color('wake'), 1);
      pen.polygon([[x, target], [x - 3.5, neck], [x + 3.5, neck]], theme.color('wake'));
    }
  }

  #meter() {
    const { pen, theme, timeline } = this;
    const [a, b] = timeline.view.meter;
    const inside = (x) => x >= this.left && x <= this.left + this.plotWidth;
    for (const [t, name] of [[a, 'A'], [b, 'B']]) {
      if (t === null || !inside(this.#x(t))) continue;
      pen.rect(this.#x(t) - 0.75, this.top - 8, 1.5, this.bottom - this.top + 8, theme.color('meter'));
      pen.text(name, this.#x(t) + 4, this.top - 1, theme.color('meter'), { size: 11, weight: 600 });
    }
    const text = timeline.view.meterText();
    if (text) pen.text(text, this.width - EXPORT.margin, EXPORT.margin + 34, theme.color('meter'), { size: 12, align: 'end' });
  }

  #names() {
    const { pen, theme } = this;
    for (const row of this.shown) {
      const y = this.top + row.top + row.height / 2 + 4;
      const isHead = row.kind === 'process' || row.kind === 'run';
      const indent = EXPORT.margin + (isHead ? 8 : 20);
      const room = Math.floor((isHead ? this.width - 120 : EXPORT.gutter - 30 - row.detail.length * 6.4) / 7);
      const name = row.name.length > room ? `${row.name.slice(0, Math.max(1, room - 1))}…` : row.name;
      pen.text(name, indent, y, theme.color('text'), { size: 12, weight: isHead ? 600 : 400 });
      if (!isHead) pen.text(row.detail, this.left - 10, y, theme.color('quiet'), { size: 11, align: 'end' });
    }
  }

  #legend() {
    const { pen, theme } = this;
    let x = EXPORT.margin;
    const y = this.bottom + 24;
    for (const [state, name] of LEGEND) {
      if (state === HIDDEN) {
        pen.polygon([[x, y + 12], [x, y + 4], [x + 3, y], [x + 6, y + 4], [x + 9, y], [x + 12, y + 4], [x + 15, y], [x + 18, y + 4], [x + 21, y], [x + 22, y + 12]], theme.color('running'));
      } else {
        pen.rect(x, y, 22, 12, pen.fillOf(state));
      }
      pen.text(name, x + 28, y + 10, theme.color('quiet'), { size: 11.5 });
      x += 28 + name.length * 6.6 + 18;
    }
  }
}

/** The picture as SVG text. */
function exportSvg(timeline, rows, report) {
  const painter = new PicturePainter(timeline, rows, report);
  return painter.paint(new SvgPen(painter.width, painter.height, painter.theme)).finish();
}

/** The picture as a PNG blob, with twice the page's resolution if a canvas can have that size. */
function exportPng(timeline, rows, report) {
  const painter = new PicturePainter(timeline, rows, report);
  const scale = Math.max(1, Math.min(2, Math.floor(MOST_HEIGHT / Math.max(painter.width, painter.height))));
  const pen = painter.paint(new CanvasPen(painter.width, painter.height, painter.theme, scale));
  return new Promise((done) => {
    pen.canvas.toBlob(done, 'image/png');
  });
}

/** Hands a file to the browser's downloads. */
function download(name, blob) {
  const link = make('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
