// SPDX-License-Identifier: MIT OR Apache-2.0
// The rows of the time-line: which there are, which are shown, and their names in the
// gutter. The names are ordinary elements, so that they can be read, found and focused.

const HEIGHT = Object.freeze({ process: 28, thread: 24, sensor: 24, gaps: 24 });

class Rows {
  /** `onChange` is called when other rows are shown than before. */
  constructor(model, holder, onChange) {
    this.holder = holder;
    this.onChange = onChange;
    this.filter = '';
    this.all = [];
    this.groups = [];
    this.visible = [];
    this.height = 0;

    if (model.hostGaps.length) this.#group(null, model.hostGaps, [], []);
    for (const process of model.processes) {
      this.#group(process, process.gaps, process.threads, process.sensors);
    }
    this.layout();
  }

  #group(process, gaps, threads, sensors) {
    const group = { process, collapsed: false, header: null, rows: [] };
    const title = process ? process.comm || `process ${process.pid}` : 'All processes';
    group.header = this.#add({ kind: 'process', group, name: title, detail: process ? String(process.pid) : '' });
    if (gaps.length) {
      const missed = gaps.reduce((sum, gap) => sum + gap.missed, 0);
      group.rows.push(this.#add({ kind: 'gaps', group, name: 'missed', detail: formatCount(missed), gaps: new Gaps(gaps) }));
    }
    for (const thread of threads) {
      const { tid, comm, intervals } = thread;
      group.rows.push(this.#add({ kind: 'thread', group, name: comm || `thread ${tid}`, detail: String(tid), intervals }));
    }
    for (const sensor of sensors) {
      const { id, instance, type, elements } = sensor;
      const name = instance === '' || instance === null ? id : `${id} ${instance}`;
      const gapsOf = elements.gaps.length ? new Gaps(elements.gaps) : null;
      group.rows.push(this.#add({ kind: 'sensor', group, name: name || 'sensor', detail: formatCount(elements.count), type, elements, gaps: gapsOf }));
    }
    const start = group.rows.map((row) => row.intervals ?? row.elements).filter((part) => part && part.count);
    group.from = Math.min(...start.map((part) => (part.times ? part.times[0] : part.first)));
    group.to = Math.max(...start.map((part) => part.end));
    this.groups.push(group);
  }

  #add(row) {
    row.height = HEIGHT[row.kind];
    row.hidden = 0;
    const what = { process: 'Process', thread: 'Thread', sensor: 'Sensor', gaps: 'Losses' }[row.kind];
    row.search = `${row.name} ${row.detail} ${row.type ?? ''}`.toLowerCase();
    row.label = `${what} ${row.name} ${row.detail}`.trim();

    const name = make('span', 'name', row.name);
    const detail = make('span', 'detail', row.detail);
    if (row.kind === 'process') {
      row.element = make('button', 'row process', [make('span', 'chevron'), name, detail]);
      row.element.type = 'button';
      row.element.setAttribute('aria-expanded', 'true');
      row.element.addEventListener('click', () => this.toggle(row.group));
    } else {
      row.element = make('div', `row ${row.kind}`, [make('span', 'glyph'), name, detail]);
    }
    row.element.title = row.kind === 'sensor' ? `${row.label} elements, ${row.type}` : row.label;
    this.holder.append(row.element);
    this.all.push(row);
    return row;
  }

  toggle(group) {
    group.collapsed = !group.collapsed;
    group.header.element.setAttribute('aria-expanded', String(!group.collapsed));
    this.layout();
    this.onChange();
  }

  setFilter(text) {
    this.filter = text.trim().toLowerCase();
    this.layout();
    this.onChange();
  }

  /** A process whose own name matches is shown with all its rows; a collapsed one opens
   *  for what is searched for, without forgetting that it was collapsed. */
  layout() {
    const { filter } = this;
    this.visible = [];
    let top = 0;
    for (const group of this.groups) {
      const whole = !filter || group.header.search.includes(filter);
      const rows = group.rows.filter((row) => whole || row.search.includes(filter));
      const shown = whole || rows.length ? [group.header, ...(group.collapsed && !(filter && rows.length) ? [] : rows)] : [];
      for (const row of [group.header, ...group.rows]) row.shown = false;
      for (const row of shown) {
        row.shown = true;
        row.top = top;
        row.index = this.visible.length;
        row.element.style.top = `${top}px`;
        row.element.style.height = `${row.height}px`;
        this.visible.push(row);
        top += row.height;
      }
    }
    for (const row of this.all) row.element.hidden = !row.shown;
    this.height = top;
    this.holder.style.height = `${top}px`;
  }

  /** The row at `y`, counted from the top of the first row, or null. */
  at(y) {
    if (y < 0 || y >= this.height) return null;
    let low = 0;
    let high = this.visible.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.visible[middle].top <= y) low = middle + 1;
      else high = middle;
    }
    return this.visible[low - 1] ?? null;
  }

  /** The rows that are at least partly between `top` and `bottom`. */
  between(top, bottom) {
    const first = this.at(Math.max(0, top));
    if (!first) return [];
    const found = [];
    for (let i = first.index; i < this.visible.length && this.visible[i].top < bottom; i += 1) found.push(this.visible[i]);
    return found;
  }

  /** "12 of 40 rows", or nothing while there is no filter. */
  matchText() {
    if (!this.filter) return '';
    const count = this.visible.filter((row) => row.kind !== 'process').length;
    const of = this.all.filter((row) => row.kind !== 'process').length;
    return `${formatCount(count)} of ${plural(of, 'row')}`;
  }
}
