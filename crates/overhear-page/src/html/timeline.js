// SPDX-License-Identifier: MIT OR Apache-2.0
// The picture: a frame draws the visible rows, the axis, and above them the metering lines and the
// pointer, and counts every primitive of it.
//
// The count is bounded by 4 * (pixels of width + visible rows):
// - The data of a row are one blit.
// - `labels` bounds the names of CPUs, the values and the times to those that fit into the width.
// - There is at most one arrow for each eight pixels. If there are more wake-ups, only the row
//   under the pointer shows its own.

const AXIS_HEIGHT = 42;
const BAR_INSET = 4;
const CPU_LABEL_WIDTH = 52;
const NAME_LABEL_WIDTH = 40;
const VALUE_LABEL_WIDTH = 84;
const PIXELS_PER_ARROW = 8;
// Maximum number of intervals that are searched for the wake-ups of one row.
const MOST_INTERVALS = 20_000;
const CHAIN = 6;
// A lane of spans, and the distance from one to the next.
const LANE_HEIGHT = 14;
const LANE_STEP = 16;

/** A canvas that counts its drawing calls: nothing else has its context. */
class Pen {
  #context;

  constructor(canvas) {
    this.canvas = canvas;
    this.#context = canvas.getContext('2d');
    this.primitives = 0;
  }

  resize(width, height, scale) {
    const { canvas } = this;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    this.width = width;
    this.height = height;
    this.scale = scale;
    this.#context.setTransform(scale, 0, 0, scale, 0, 0);
  }

  begin() {
    this.primitives = 1;
    this.#context.clearRect(0, 0, this.width, this.height);
  }

  /** A filled rectangle with its edges on whole device pixels, at least one wide and high. */
  rect(x, y, width, height, color) {
    const { scale } = this;
    const left = Math.round(x * scale);
    const top = Math.round(y * scale);
    const right = Math.max(left + 1, Math.round((x + width) * scale));
    const bottom = Math.max(top + 1, Math.round((y + height) * scale));
    this.primitives += 1;
    this.#context.fillStyle = color;
    this.#context.fillRect(left / scale, top / scale, (right - left) / scale, (bottom - top) / scale);
  }

  text(text, x, y, color, font, align = 'left') {
    this.primitives += 1;
    const context = this.#context;
    context.fillStyle = color;
    context.font = font;
    context.textAlign = align;
    context.textBaseline = 'middle';
    context.fillText(text, x, y);
  }

  /** Measuring draws nothing, so it does not count. */
  textWidth(text, font) {
    this.#context.font = font;
    return this.#context.measureText(text).width;
  }

  /** An arrow up or down at `x`, on a ground that separates it from the bars. */
  arrow(x, from, to, color, ground, width) {
    const context = this.#context;
    const down = to >= from ? 1 : -1;
    const neck = to - 5 * down;
    this.primitives += 4;
    for (const [style, extra] of [[ground, 2], [color, 0]]) {
      context.strokeStyle = style;
      context.fillStyle = style;
      context.lineWidth = width + extra;
      context.beginPath();
      context.moveTo(x, from);
      context.lineTo(x, neck);
      context.stroke();
      context.beginPath();
      context.moveTo(x, to + (extra / 2) * down);
      context.lineTo(x - 3.5 - extra / 2, neck - (extra / 2) * down);
      context.lineTo(x + 3.5 + extra / 2, neck - (extra / 2) * down);
      context.fill();
    }
  }

  /** Image data ignore the transformation: the strip's position is in device pixels. */
  blit(strip, y) {
    this.primitives += 1;
    this.#context.putImageData(strip.image, 0, Math.round(y * this.scale));
  }
}

class Timeline {
  constructor(rows, view) {
    this.rows = rows;
    this.view = view;
    this.axis = new Pen(byId('axis'));
    this.plot = new Pen(byId('plot'));
    this.over = new Pen(byId('over'));
    this.scroller = byId('scroller');
    this.frames = 0;
    this.shownRows = 0;
    this.wakes = { inView: 0, drawn: 0 };
    this.width = 1;
    this.height = 1;
    this.strips = new Map();
    this.resize();
  }

  /** Takes the size from the layout, and the colours from the style sheet. */
  resize() {
    const { scroller } = this;
    const scale = Math.max(0.5, window.devicePixelRatio || 1);
    const gutter = parseFloat(getComputedStyle(byId('frame')).getPropertyValue('--gutter'));
    this.width = Math.max(64, Math.floor(scroller.clientWidth - gutter));
    this.height = Math.max(24, scroller.clientHeight);
    this.scale = scale;
    this.theme = new Theme(scale);
    this.axis.resize(this.width, AXIS_HEIGHT, scale);
    this.plot.resize(this.width, this.height, scale);
    this.over.resize(this.width, this.height, scale);
    const columns = Math.round(this.width * scale);
    byId('track').style.width = `${this.width}px`;
    this.columns = new Columns(columns);
    this.gapColumns = new Columns(columns);
    this.strips.clear();
  }

  get primitives() {
    return this.axis.primitives + this.plot.primitives + this.over.primitives;
  }

  get bound() {
    return 4 * (this.width + this.shownRows);
  }

  get perPixel() {
    return (this.view.to - this.view.from) / this.width;
  }

  xOf(t) {
    return (t - this.view.from) / this.perPixel;
  }

  timeAt(x) {
    return this.view.from + x * this.perPixel;
  }

  /** Draws everything. */
  draw() {
    this.frames += 1;
    const { plot, scroller, rows, theme } = this;
    const top = scroller.scrollTop;
    this.labels = this.width;
    this.ticks = this.#ticks();

    plot.begin();
    const shown = rows.between(top, top + this.height);
    this.shownRows = shown.length;
    for (const tick of this.ticks.major) {
      plot.rect(this.xOf(tick), 0, 1 / this.scale, Math.min(this.height, rows.height - top), theme.grid);
    }
    for (const row of shown) this.#drawRow(row, row.top - top);
    this.#drawWakes(shown, top);
    this.drawOver();
  }

  /** Draws the axis and the parts that move with the pointer, over the unchanged rows. */
  drawOver() {
    this.#drawAxis();
    this.#drawOver();
  }

  #strip(height) {
    if (!this.strips.has(height)) {
      this.strips.set(height, new Strip(Math.round(this.width * this.scale), Math.round(height * this.scale), this.scale));
    }
    return this.strips.get(height);
  }

  #drawRow(row, y) {
    const { plot, theme, columns, gapColumns, view, scale } = this;
    const perColumn = this.perPixel / scale;
    if (row.kind === 'run') {
      plot.rect(0, y, this.width, row.height, theme.surface);
      plot.rect(0, y + row.height - 2, this.width, 2, theme.accent);
      const end = this.xOf(row.run.extent);
      if (end > 0 && end < this.width) plot.rect(end, y, 1, row.height, theme.accent);
      return;
    }
    if (row.kind === 'process') {
      plot.rect(0, y, this.width, row.height, theme.line);
      const { from, to } = row.group;
      if (from < to) {
        const x0 = Math.max(0, this.xOf(from));
        const x1 = Math.min(this.width, this.xOf(to));
        if (x0 < x1) plot.rect(x0, y + row.height / 2 - 1, x1 - x0, 2, theme.grid);
      }
      return;
    }
    const height = row.height - 2 * BAR_INSET;
    const strip = this.#strip(height);
    if (row.kind === 'thread') {
      columns.fromIntervals(row.intervals, view.from, perColumn, CPU_LABEL_WIDTH * scale);
      strip.paintStates(columns, theme);
    } else if (row.kind === 'cpu') {
      columns.fromIntervals(row.cpu.intervals, view.from, perColumn, NAME_LABEL_WIDTH * scale);
      strip.paintOwners(columns, theme, row.cpu.owners);
    } else if (row.kind === 'sensor' && row.mode === 'graph') {
      const { series } = row.elements.fields[row.field];
      columns.fromSeries(row.elements, series, view.from, perColumn, row.run.extent);
      strip.paintSeries(columns, theme, Math.min(0, series.low), series.high);
    } else if (row.kind === 'sensor' && row.mode === 'bars') {
      columns.fromIntervals(row.jobs.intervals, view.from, perColumn, NAME_LABEL_WIDTH * scale);
      strip.paintLevels(columns, theme, jobLevel(row, columns, view.from, perColumn));
    } else if (row.kind === 'sensor' && row.mode === 'spans') {
      this.#drawSpans(row, y, perColumn);
      return;
    } else if (row.kind === 'sensor') {
      columns.fromElements(row.elements, view.from, perColumn);
      strip.paintElements(columns, theme);
    } else {
      strip.pixels.fill(theme.background);
      columns.clear();
    }
    if (row.gaps) {
      gapColumns.fromGaps(row.gaps, view.from, perColumn, Math.round(3 * scale));
      strip.overlayGaps(gapColumns, theme);
    }
    row.hidden = columns.hidden;
    strip.paintGrid(this.ticks.major.map((tick) => Math.round(this.xOf(tick) * scale)), theme);
    plot.blit(strip, y + BAR_INSET);
    if (row.kind === 'thread') this.#labelCpus(row, y);
    if (row.kind === 'cpu') this.#labelOwners(row, y);
    if (row.kind === 'sensor' && row.mode === 'marks') this.#labelValues(row, y);
    if (row.kind === 'sensor' && row.mode === 'bars') this.#markAnomalies(row, y);
  }

  /** A pin above each anomaly, as long as there is room for labels. */
  #markAnomalies(row, y) {
    for (const anomaly of row.anomalies) {
      const x = this.xOf(anomaly.end_ns - row.run.origin - anomaly.duration_ns / 2);
      if (x < 0 || x > this.width || this.labels === 0) continue;
      this.labels -= 1;
      this.plot.rect(x - 2.5, y, 5, BAR_INSET + 2, this.theme.missed);
      this.plot.rect(x - 0.75, y, 1.5, row.height - BAR_INSET, this.theme.missed);
    }
  }

  /** A label within a bar from column `from` to column `to`, as long as it fits. */
  #labelBar(text, from, to, y, height, color) {
    const font = `11px ${this.theme.font}`;
    const room = (to - from) / this.scale - 10;
    if (this.labels === 0) return;
    let label = text;
    // A name that does not fit is cut, but not to less than six letters.
    while (label.length > 6 && this.plot.textWidth(label, font) > room) label = `${label.slice(0, -2)}…`;
    if (this.plot.textWidth(label, font) > room) return;
    this.labels -= 1;
    this.plot.text(label, from / this.scale + 5, y + height / 2 + 0.5, color, font);
  }

  #labelOwners(row, y) {
    const { wide } = this.columns;
    for (let i = 0; i < wide.length; i += 3) {
      const owner = row.cpu.owners[wide[i + 2]];
      const { comm, tid } = row.run.threads[owner];
      this.#labelBar(comm || String(tid), wide[i], wide[i + 1], y, row.height, this.theme.onOwner(owner));
    }
  }

  /** Each lane is a strip of its own. */
  #drawSpans(row, y, perColumn) {
    const { columns, theme, view, scale } = this;
    const strip = this.#strip(LANE_HEIGHT);
    row.hidden = 0;
    const { lanes } = this.rows.spansOf(row);
    lanes.forEach((lane, index) => {
      columns.fromIntervals(lane.intervals, view.from, perColumn, NAME_LABEL_WIDTH * scale);
      strip.paintSpans(columns, theme);
      row.hidden += columns.hidden;
      if (row.gaps) {
        this.gapColumns.fromGaps(row.gaps, view.from, perColumn, Math.round(3 * scale));
        strip.overlayGaps(this.gapColumns, theme);
      }
      strip.paintGrid(this.ticks.major.map((tick) => Math.round(this.xOf(tick) * scale)), theme);
      const top = y + BAR_INSET + index * LANE_STEP;
      this.plot.blit(strip, top);
      this.#labelSpans(row, lane, top);
      // The first of a CPU's lanes has the name of the CPU.
      if (lane.cpu !== null && lane.cpu !== lanes[index - 1]?.cpu) {
        this.plot.text(`CPU ${lane.cpu}`, 4, top + LANE_HEIGHT / 2 + 0.5, theme.quiet, `10px ${theme.font}`);
      }
    });
  }

  #labelSpans(row, lane, top) {
    const { wide } = this.columns;
    for (let i = 0; i < wide.length; i += 3) {
      this.#labelBar(spanText(row, lane.members[wide[i + 2]]), wide[i], wide[i + 1], top, LANE_HEIGHT, this.theme.onMark);
    }
  }

  /** The wake-ups of a row in the view: first and end index, and their number. */
  #wakesIn(row) {
    const { starts } = row.intervals;
    const first = lowerBound(starts, this.view.from);
    const end = Math.min(row.intervals.count, lowerBound(starts, this.view.to));
    const count = first < end ? row.intervals.countUntil(end, STATE.RUNNABLE) - row.intervals.countUntil(first, STATE.RUNNABLE) : 0;
    return { row, first, end, count };
  }

  #drawWakes(shown, top) {
    this.wakes = { inView: 0, drawn: 0 };
    if (!this.view.showWakes) return;
    const all = shown.filter((row) => row.kind === 'thread').map((row) => this.#wakesIn(row));
    for (const one of all) this.wakes.inView += one.count;
    const room = Math.floor(this.width / PIXELS_PER_ARROW);
    const chosen = this.wakes.inView <= room ? all : all.filter(({ row, count }) => row === this.view.hover?.row && count <= room);
    for (const { row, first, end, count } of chosen) {
      if (!count || end - first > MOST_INTERVALS) continue;
      for (let i = first; i < end; i += 1) {
        if (row.intervals.states[i] !== STATE.RUNNABLE) continue;
        const reason = row.intervals.reasonAt(i);
        if (reason?.[0] !== 'woken') continue;
        const t = row.intervals.starts[i];
        if (this.#arrow(this.plot, row, t, row.run.threadAt(reason[1], t), top, 1)) this.wakes.drawn += 1;
      }
    }
  }

  /** An arrow from the row of the waker to that of the woken, if both are shown. */
  #arrow(pen, row, t, waker, top, width) {
    const from = waker && this.rows.ofThread(row.run, waker);
    if (!from || from === row) return false;
    const [y0, y1] = [from.top + from.height / 2 - top, row.top - top];
    const target = y0 < y1 ? y1 + BAR_INSET : y1 + row.height - BAR_INSET;
    const clamp = (y) => Math.max(-20, Math.min(this.height + 20, y));
    pen.arrow(this.xOf(t), clamp(y0), clamp(target), this.theme.wake, pen === this.plot ? this.theme.halo : this.theme.surface, width);
    return true;
  }

  /** The chain of wakers of the thread under the pointer: its waker, the waker's waker, and so
   *  on. */
  #drawChain(top) {
    const { hover, showWakes } = this.view;
    if (!showWakes || hover?.row?.kind !== 'thread' || !hover.row.shown) return;
    let { row, t } = hover;
    for (let step = 0; step < CHAIN; step += 1) {
      const wake = wakeBefore(row.run, row.thread, t);
      if (!wake || wake.t < this.view.from || !this.#arrow(this.over, row, wake.t, wake.waker, top, 2)) return;
      row = this.rows.ofThread(row.run, wake.waker);
      t = wake.t;
    }
  }

  #labelCpus(row, y) {
    const { wide } = this.columns;
    const font = `11px ${this.theme.font}`;
    for (let i = 0; i < wide.length; i += 3) {
      const cpu = row.intervals.cpus[wide[i + 2]];
      if (cpu === NO_CPU || this.labels === 0) continue;
      this.labels -= 1;
      this.plot.text(`CPU ${cpu}`, wide[i] / this.scale + 6, y + row.height / 2 + 0.5, this.theme.onRunning, font);
    }
  }

  /** If elements are far enough apart, each gets a label with its first field's value. */
  #labelValues(row, y) {
    const { elements } = row;
    const field = elements.fields[row.labelField];
    if (!field) return;
    const first = lowerBound(elements.times, this.view.from);
    const end = lowerBound(elements.times, this.view.to);
    if ((end - first) * VALUE_LABEL_WIDTH > this.width) return;
    const font = `11px ${this.theme.font}`;
    for (let i = first; i < end; i += 1) {
      if (i >= field.values.length || this.labels === 0) return;
      const x = this.xOf(elements.times[i]) + 7;
      const room = (i + 1 < end ? this.xOf(elements.times[i + 1]) : this.width) - x - 6;
      const text = fieldText(row, field, i);
      if (room < 24 || text.length > 24 || this.plot.textWidth(text, font) > room) continue;
      this.labels -= 1;
      this.plot.text(text, x, y + row.height / 2 + 0.5, this.theme.quiet, font);
    }
  }

  /** Ticks at 1, 2 or 5 times a power of ten, so far apart that their labels fit. */
  #ticks() {
    const { view } = this;
    const least = this.perPixel * 110;
    const power = 10 ** Math.floor(Math.log10(least));
    const factor = [1, 2, 5, 10].find((f) => f * power >= least * 0.999999);
    const step = Math.max(1, factor * power);
    const decimals = Math.min(6, Math.max(0, Math.ceil(6 - Math.log10(step) - 1e-9)));
    const major = [];
    for (let i = Math.ceil(view.from / step); i * step <= view.to; i += 1) major.push(i * step);
    return { step, decimals, major };
  }

  #drawAxis() {
    const { axis, theme, ticks } = this;
    axis.begin();
    const minor = ticks.step / 5;
    for (let i = Math.ceil(this.view.from / minor); i * minor <= this.view.to; i += 1) {
      const isMajor = i % 5 === 0;
      axis.rect(this.xOf(i * minor), AXIS_HEIGHT - (isMajor ? 12 : 6), 1 / this.scale, isMajor ? 12 : 6, theme.quiet);
    }
    const font = `11.5px ${theme.font}`;
    for (const tick of ticks.major) {
      const text = formatMs(tick, ticks.decimals);
      const half = axis.textWidth(text, font) / 2;
      const x = this.xOf(tick);
      // A label at the border is moved inwards instead of being cut.
      axis.text(text, Math.min(Math.max(x, half + 1), this.width - half - 1), 13, theme.text, font, 'center');
    }
  }

  #drawOver() {
    const { over, theme, view } = this;
    const bottom = Math.min(this.height, this.rows.height - this.scroller.scrollTop);
    over.begin();
    const { hover, selection } = view;
    if (hover?.row?.shown) {
      const y = hover.row.top - this.scroller.scrollTop;
      over.rect(0, y, this.width, 1, theme.quiet);
      over.rect(0, y + hover.row.height - 1, this.width, 1, theme.quiet);
    }
    if (hover && !view.dragging) over.rect(this.xOf(hover.t), 0, 1, bottom, theme.quiet);
    if (selection) {
      const x0 = this.xOf(Math.min(...selection));
      const x1 = this.xOf(Math.max(...selection));
      over.rect(x0, 0, x1 - x0, bottom, `${theme.accent}33`);
      over.rect(x0, 0, 1, bottom, theme.accent);
      over.rect(x1, 0, 1, bottom, theme.accent);
    }
    if (!view.dragging) this.#drawChain(this.scroller.scrollTop);
    this.#drawMeter(bottom);
  }

  /** The two metering lines, and between them the time that they are apart. */
  #drawMeter(bottom) {
    const { over, axis, theme, view } = this;
    const [a, b] = view.meter;
    if (a !== null && b !== null) {
      const x0 = Math.max(0, this.xOf(Math.min(a, b)));
      const x1 = Math.min(this.width, this.xOf(Math.max(a, b)));
      if (x0 < x1) {
        over.rect(x0, 0, x1 - x0, bottom, `${theme.meter}1f`);
        axis.rect(x0, AXIS_HEIGHT - 3, x1 - x0, 3, theme.meter);
      }
    }
    view.meter.forEach((t, which) => {
      if (t === null) return;
      const x = this.xOf(t);
      if (x < -10 || x > this.width + 10) return;
      over.rect(x - 0.75, 0, 1.5, bottom, theme.meter);
      axis.rect(x - 0.75, AXIS_HEIGHT - 19, 1.5, 19, theme.meter);
      // Each flag points away from the other line, so that close lines keep both.
      const other = view.meter[1 - which];
      const left = other === null ? which === 0 : t < other || (t === other && which === 0);
      const flag = left ? x - 16.5 : x + 0.5;
      axis.rect(flag, AXIS_HEIGHT - 19, 16, 16, theme.meter);
      axis.text('AB'[which], flag + 8, AXIS_HEIGHT - 10.5, theme.surface, `600 11px ${theme.font}`, 'center');
    });
  }
}
