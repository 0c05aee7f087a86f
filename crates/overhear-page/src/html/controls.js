// SPDX-License-Identifier: MIT OR Apache-2.0
// Input: mouse and keyboard choose another part of the run, a metering line or a row to inspect,
// and each change requests one frame.

const DRAG_DISTANCE = 4;
const GRIP = 5;
// While the page scrolls, the time-line under the pointer must not stop it.
const SCROLL_PAUSE = 350;

const KEYS = [
  ['Wheel', 'Zoom at the pointer; with Shift, move sideways; over the names, scroll the rows'],
  ['Drag', 'Move the view'],
  ['Shift + drag', 'Zoom to the selection'],
  ['← → or A D', 'Move left and right'],
  ['+ − or W S', 'Zoom in and out'],
  ['0 or Home', 'Show the whole run'],
  ['↑ ↓', 'Choose a row'],
  [', and .', 'Previous and next change in the row'],
  ['Click', 'Place metering line A; with Shift or the right button, line B; with Alt, at the nearest change'],
  ['[ and ]', 'Place metering line A, or B, at the pointer'],
  ['M', 'Zoom to what is between the lines'],
  ['X or Escape', 'Remove the metering lines'],
  ['C', 'Show CPUs and threads, threads, or CPUs'],
  ['K', 'Arrows from who wakes to who is woken; the row under the pointer shows who woke whom before'],
  ['V', 'Only rows in which something happens in view'],
  ['T', 'Time stamps as recorded, or less what observing has cost, where that is known'],
  ['I', 'Statistics of what is between the lines, else of what is in view'],
  ['/', 'Search: words choose rows, -word leaves rows out, kind:thread chooses a kind'],
  ['Enter, Shift + Enter', 'In the search: the next, or the last, moment that fits. is:preempted, is:waiting, is:blocked, is:again (switched to itself), >1ms, <1ms and by:NAME say what fits'],
  ['?', 'This help'],
];

/** Binds mouse and keyboard to the view. */
class Controls {
  constructor(view, timeline, rows, statistics, report, time) {
    this.time = time;
    this.statistics = statistics;
    this.report = report;
    this.view = view;
    this.timeline = timeline;
    this.rows = rows;
    this.frame = byId('frame');
    this.surface = byId('over');
    this.tooltip = byId('tooltip');
    this.pointer = null;
    this.press = null;
    this.scheduled = 0;
    this.lastPageScroll = -Infinity;
    this.lastZoom = -Infinity;
    this.#bindMouse();
    this.#bindKeys();
    this.#bindBar();
    this.#bindTrack();
  }

  /** Requests one frame for all changes until then. */
  changed() {
    if (!this.scheduled) this.scheduled = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    if (this.scheduled) cancelAnimationFrame(this.scheduled);
    this.scheduled = 0;
    const { hover } = this.view;
    // A row that moves under a resting pointer is hovered as well; the choice of a keyboard stays.
    if (this.pointer && !this.press && hover && !hover.exact) {
      const { t, row, y } = this.#place(this.pointer);
      this.view.hover = { t, row, y: y - (row?.top ?? 0), exact: false };
    }
    this.timeline.draw();
    this.#showState();
    this.statistics.changed();
  }

  setView(from, to) {
    this.view.set(from, to);
    this.changed();
  }

  setMeter(which, t) {
    this.view.meter[which] = t === null ? null : Math.min(Math.max(0, Math.round(t)), Math.ceil(this.view.extent));
    this.lastSet = which;
    this.changed();
  }

  #showState() {
    const { view } = this;
    const [a, b] = view.meter;
    const meter = byId('meter');
    const parts = [];
    if (a !== null) parts.push(make('span', 'reading', [make('b', '', 'A'), formatExact(a)]));
    if (b !== null) parts.push(make('span', 'reading', [make('b', '', 'B'), formatExact(b)]));
    if (a !== null && b !== null) parts.push(make('span', 'reading between', ['between ', make('strong', '', formatExact(Math.abs(b - a)))]));
    if (!parts.length) parts.push(make('span', 'hint', 'Click: line A, Shift-click: line B'));
    // Written only if the text differs, so that screen readers do not repeat it.
    const text = view.meterText();
    if (text !== this.shownMeter) meter.replaceChildren(...parts);
    this.shownMeter = text;
    byId('zoom-meter').disabled = a === null || b === null || a === b;
    const { inView, drawn } = this.timeline.wakes;
    const note = view.showWakes && inView > drawn && drawn === 0 ? `${plural(inView, 'wake-up')}: zoom in for arrows` : '';
    if (byId('wakes-note').textContent !== note) byId('wakes-note').textContent = note;

    byId('span').textContent = `${formatDuration(view.to - view.from)} shown, axis in ms`;
    const thumb = byId('thumb').style;
    thumb.left = `${(view.from / view.extent) * 100}%`;
    thumb.width = `${((view.to - view.from) / view.extent) * 100}%`;
  }

  #place(event) {
    const box = this.surface.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top + this.timeline.scroller.scrollTop;
    return { x, y, t: this.timeline.timeAt(x), row: this.rows.at(y) };
  }

  /** The metering line under the pointer, or -1. */
  #lineAt(x) {
    const distances = this.view.meter.map((t) => (t === null ? Infinity : Math.abs(this.timeline.xOf(t) - x)));
    const nearest = distances[1] <= distances[0] ? 1 : 0;
    return distances[nearest] <= GRIP ? nearest : -1;
  }

  #meterTime(event, place) {
    return event.altKey ? snap(place.row, place.t, this.timeline.perPixel * 12) : place.t;
  }

  #bindMouse() {
    const { surface, view, timeline } = this;
    surface.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      surface.setPointerCapture(event.pointerId);
      this.frame.focus({ preventScroll: true });
      const place = this.#place(event);
      this.press = {
        x: event.clientX,
        y: event.clientY,
        place,
        from: view.from,
        to: view.to,
        scroll: timeline.scroller.scrollTop,
        line: event.shiftKey ? -1 : this.#lineAt(place.x),
        select: event.shiftKey,
        moved: false,
      };
      event.preventDefault();
    });
    surface.addEventListener('pointermove', (event) => {
      const place = this.#place(event);
      this.pointer = event;
      if (this.press) this.#drag(event, place);
      else {
        surface.style.cursor = this.#lineAt(place.x) >= 0 ? 'ew-resize' : 'crosshair';
        const before = view.hover?.row;
        view.hover = { t: place.t, row: place.row, y: place.y - (place.row?.top ?? 0), exact: false };
        this.#showTooltip(event.clientX, event.clientY, GRIP);
        // If there are too many wake-ups for arrows, only the row under the pointer shows them.
        if (before !== place.row && timeline.wakes.inView > 0 && view.showWakes) this.changed();
      }
      timeline.drawOver();
    });
    surface.addEventListener('pointerup', (event) => this.#release(event));
    surface.addEventListener('pointercancel', () => {
      this.press = null;
      view.selection = null;
      view.dragging = false;
      this.changed();
    });
    surface.addEventListener('pointerleave', () => {
      this.pointer = null;
      if (this.press) return;
      view.hover = null;
      this.tooltip.hidden = true;
      timeline.drawOver();
    });
    surface.addEventListener('contextmenu', (event) => {
      event.preventDefault();
      this.setMeter(1, this.#meterTime(event, this.#place(event)));
    });
    surface.addEventListener('wheel', (event) => this.#wheel(event), { passive: false });
    window.addEventListener('wheel', (event) => {
      if (event.target !== surface) this.lastPageScroll = event.timeStamp;
    }, { passive: true });
    timeline.scroller.addEventListener('scroll', () => {
      this.tooltip.hidden = true;
      this.changed();
    });
  }

  #drag(event, place) {
    const { press, view, timeline } = this;
    const dx = event.clientX - press.x;
    const dy = event.clientY - press.y;
    if (!press.moved && Math.hypot(dx, dy) < DRAG_DISTANCE) return;
    press.moved = true;
    view.dragging = true;
    view.hover = null;
    this.tooltip.hidden = true;
    if (press.line >= 0) {
      this.setMeter(press.line, this.#meterTime(event, place));
    } else if (press.select) {
      view.selection = [press.place.t, place.t];
    } else {
      const shift = (dx / timeline.width) * (press.to - press.from);
      this.setView(press.from - shift, press.to - shift);
      timeline.scroller.scrollTop = press.scroll - dy;
    }
  }

  #release(event) {
    const { press, view } = this;
    if (!press) return;
    this.press = null;
    view.dragging = false;
    const place = this.#place(event);
    if (!press.moved) {
      this.setMeter(event.shiftKey ? 1 : 0, this.#meterTime(event, press.place));
    } else if (press.select) {
      const [from, to] = [press.place.t, place.t].sort((a, b) => a - b);
      view.selection = null;
      if (to > from) this.setView(from, to);
    }
    this.changed();
  }

  #wheel(event) {
    const { view, timeline } = this;
    // A wheel that was already turning when the pointer arrived scrolls the page.
    if (event.timeStamp - this.lastPageScroll < SCROLL_PAUSE) {
      this.lastPageScroll = event.timeStamp;
      return;
    }
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      view.move(sideways * unit * timeline.perPixel);
    } else {
      const out = event.deltaY > 0;
      // The whole run is the widest view: then the page scrolls on, but not in the middle of the
      // turn that led there.
      if (out && view.isWhole()) {
        if (event.timeStamp - this.lastZoom < SCROLL_PAUSE) event.preventDefault();
        return;
      }
      event.preventDefault();
      this.lastZoom = event.timeStamp;
      const turn = Math.max(-240, Math.min(240, event.deltaY * unit));
      view.zoom(Math.exp(turn * 0.002), this.#place(event).t);
    }
    this.tooltip.hidden = true;
    this.changed();
  }

  #bindKeys() {
    this.frame.addEventListener('keydown', (event) => this.#key(event));
    document.addEventListener('keydown', (event) => {
      if (event.defaultPrevented || event.target.closest?.('input, button, dialog, th, summary')) return;
      // Over the plot the keys work at once; elsewhere only the unambiguous ones do.
      if (event.target === document.body && this.pointer) this.#key(event);
      else if (event.key === '?' || event.key === '/') this.#key(event);
    });
    this.frame.addEventListener('blur', () => {
      if (!this.pointer) this.tooltip.hidden = true;
    });
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest?.('button') && (event.key === 'Enter' || event.key === ' ')) return;
    const { view, timeline } = this;
    const span = view.to - view.from;
    const step = event.shiftKey ? 0.5 : 0.1;
    const center = this.pointer && view.hover ? view.hover.t : view.from + span / 2;
    const actions = {
      ArrowLeft: () => view.move(-span * step),
      ArrowRight: () => view.move(span * step),
      a: () => view.move(-span * step),
      d: () => view.move(span * step),
      ArrowUp: () => this.#chooseRow(-1),
      ArrowDown: () => this.#chooseRow(1),
      PageUp: () => { timeline.scroller.scrollTop -= timeline.height * 0.9; },
      PageDown: () => { timeline.scroller.scrollTop += timeline.height * 0.9; },
      '+': () => view.zoom(1 / 1.5, center),
      '=': () => view.zoom(1 / 1.5, center),
      w: () => view.zoom(1 / 1.5, center),
      '-': () => view.zoom(1.5, center),
      _: () => view.zoom(1.5, center),
      s: () => view.zoom(1.5, center),
      0: () => view.set(0, view.extent),
      Home: () => view.set(0, view.extent),
      ',': () => this.#step(false),
      '.': () => this.#step(true),
      '[': () => this.setMeter(0, view.hover ? view.hover.t : view.from + span / 2),
      ']': () => this.setMeter(1, view.hover ? view.hover.t : view.from + span / 2),
      m: () => this.#zoomToMeter(),
      x: () => this.#clearMeter(),
      Escape: () => this.#clearMeter(),
      c: () => this.#nextParts(),
      k: () => this.#toggleWakes(),
      v: () => this.#toggleActive(),
      t: () => this.setTime(!this.time.isCompensated),
      i: () => {
        const panel = byId('statistics');
        panel.open = !panel.open;
      },
      '/': () => byId('search').focus(),
      '?': () => byId('help').showModal(),
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
    this.changed();
  }

  #setParts(parts) {
    for (const one of ['both', 'threads', 'cpus']) byId(`show-${one}`).setAttribute('aria-pressed', String(one === parts));
    this.rows.setParts(parts);
    byId('matches').textContent = this.rows.matchText();
  }

  /** Shows recorded time stamps or compensated ones; the view and the lines stay where they are. */
  setTime(isCompensated) {
    if (!this.time.isThere || isCompensated === this.time.isCompensated) return;
    this.time.set(isCompensated);
    byId('time-plain').setAttribute('aria-pressed', String(!isCompensated));
    byId('time-compensated').setAttribute('aria-pressed', String(isCompensated));
    byId('time-note').textContent = this.time.text();
    this.view.hover = null;
    this.tooltip.hidden = true;
    this.rows.replace();
    this.changed();
  }

  #nextParts() {
    const all = ['both', 'threads', 'cpus'];
    this.#setParts(all[(all.indexOf(this.rows.parts) + 1) % all.length]);
  }

  #toggleWakes() {
    this.view.showWakes = !this.view.showWakes;
    byId('wakes').setAttribute('aria-pressed', String(this.view.showWakes));
  }

  #toggleActive() {
    this.rows.setActive(this.rows.active ? null : [this.view.from, this.view.to]);
    byId('active').setAttribute('aria-pressed', String(this.rows.active !== null));
    byId('matches').textContent = this.rows.matchText();
  }

  /** Goes to the next match of the search, in whichever row it comes first. */
  #find(forward) {
    const { rows, view } = this;
    const span = view.to - view.from;
    const begin = view.hover?.exact ? view.hover.t : forward ? view.from - 1 : view.to;
    let best = null;
    for (const row of rows.visible) {
      const t = findInRow(row, rows.query, begin, forward);
      if (t !== null && (best === null || (forward ? t < best.t : t > best.t))) best = { row, t };
    }
    if (!best) {
      byId('matches').textContent = forward ? 'nothing more to the right' : 'nothing more to the left';
      return;
    }
    byId('matches').textContent = `found at ${formatExact(Math.round(best.t))}`;
    if (best.t < view.from || best.t > view.to) view.set(best.t - span / 2, best.t + span / 2);
    this.#inspectByKey(best.row, best.t);
  }

  /** Saves the picture; without a program's name the file is named overhear. */
  async #save(kind) {
    const program = String(list(this.report().command)[0] ?? '').split('/').pop().replace(/[^\w.-]/g, '') || 'overhear';
    const blob = kind === 'svg'
      ? new Blob([exportSvg(this.timeline, this.rows, this.report())], { type: 'image/svg+xml' })
      : await exportPng(this.timeline, this.rows, this.report());
    if (blob) download(`${program}.${kind}`, blob);
  }

  #clearMeter() {
    this.view.meter = [null, null];
  }

  #zoomToMeter() {
    const [a, b] = this.view.meter;
    if (a === null || b === null || a === b) return;
    const margin = Math.abs(b - a) * 0.05;
    this.view.set(Math.min(a, b) - margin, Math.max(a, b) + margin);
  }

  #chooseRow(by) {
    const { rows, view } = this;
    const start = view.hover?.row?.shown ? view.hover.row.index + by : by > 0 ? 0 : rows.visible.length - 1;
    let index = start;
    while (['process', 'run'].includes(rows.visible[index]?.kind)) index += by;
    const row = rows.visible[index];
    if (!row) return;
    this.#inspectByKey(row, view.hover ? view.hover.t : (view.from + view.to) / 2);
  }

  #step(forward) {
    const { view, rows } = this;
    if (!view.hover?.row?.shown) this.#chooseRow(1);
    const row = view.hover?.row ?? rows.visible[0];
    if (!row || !view.hover) return;
    const t = nextChange(row, view.hover.t, forward);
    if (t !== null) this.#inspectByKey(row, t);
  }

  #inspectByKey(row, t) {
    const { view, timeline } = this;
    const span = view.to - view.from;
    view.hover = { t, row, exact: true };
    if (t < view.from || t > view.to) view.set(t - span / 2, t + span / 2);
    const { scroller } = timeline;
    if (row.top < scroller.scrollTop) scroller.scrollTop = row.top;
    if (row.top + row.height > scroller.scrollTop + timeline.height) scroller.scrollTop = row.top + row.height - timeline.height;
    this.drawNow();
    const box = this.surface.getBoundingClientRect();
    const found = this.#showTooltip(box.left + timeline.xOf(t), box.top + row.top - scroller.scrollTop + row.height / 2, 1);
    byId('announce').textContent = found ? inspectText(found) : `${row.label}: nothing at ${formatExact(Math.round(t))}`;
  }

  #showTooltip(clientX, clientY, reachPixels) {
    const { tooltip, view, timeline } = this;
    const { hover } = view;
    const { perPixel } = timeline;
    const found = hover?.row ? inspect(hover.row, hover.t, perPixel, perPixel * reachPixels, hover.exact, hover.y) : null;
    tooltip.hidden = !found;
    if (!found) return null;
    const swatch = found.state >= 0 ? make('span', `swatch s${found.state}`) : make('span', 'swatch pin');
    const facts = make('dl', '', found.facts.flatMap(([name, value]) => [make('dt', '', name), make('dd', '', value)]));
    tooltip.replaceChildren(
      make('div', 'tip-title', found.title),
      make('div', 'tip-state', [swatch, found.headline]),
      facts,
      ...(found.note ? [make('div', 'tip-note', found.note)] : []),
    );
    // Next to the pointer, on the side that has room for it.
    const { offsetWidth: width, offsetHeight: height } = tooltip;
    const right = clientX + 16 + width < window.innerWidth - 8;
    const below = clientY + 18 + height < window.innerHeight - 8;
    tooltip.style.left = `${Math.max(8, right ? clientX + 16 : clientX - 16 - width)}px`;
    tooltip.style.top = `${Math.max(8, below ? clientY + 18 : clientY - 14 - height)}px`;
    return found;
  }

  #bindBar() {
    const { view } = this;
    const middle = () => (view.from + view.to) / 2;
    const press = (id, action) => byId(id).addEventListener('click', () => {
      action();
      this.changed();
    });
    press('zoom-in', () => view.zoom(0.5, middle()));
    press('zoom-out', () => view.zoom(2, middle()));
    press('fit', () => view.set(0, view.extent));
    press('zoom-meter', () => this.#zoomToMeter());
    press('wakes', () => this.#toggleWakes());
    press('active', () => this.#toggleActive());
    press('save-svg', () => this.#save('svg'));
    press('save-png', () => this.#save('png'));
    for (const parts of ['both', 'threads', 'cpus']) press(`show-${parts}`, () => this.#setParts(parts));
    byId('time-choice').hidden = !this.time.isThere;
    press('time-plain', () => this.setTime(false));
    press('time-compensated', () => this.setTime(true));
    press('help-open', () => byId('help').showModal());
    byId('keys').append(...KEYS.map(([key, text]) => make('tr', '', [make('th', '', key), make('td', '', text)])));
    const search = byId('search');
    search.addEventListener('input', () => {
      this.rows.setFilter(search.value);
      byId('matches').textContent = this.rows.matchText();
    });
    search.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') {
        this.#find(!event.shiftKey);
        return;
      }
      if (event.key !== 'Escape') return;
      search.value = '';
      this.rows.setFilter('');
      byId('matches').textContent = '';
      this.frame.focus({ preventScroll: true });
    });
  }

  /** The bar below the rows shows which part of the run is in view, and moves it. */
  #bindTrack() {
    const track = byId('track');
    const { view } = this;
    let grip = null;
    const time = (event) => {
      const box = track.getBoundingClientRect();
      return ((event.clientX - box.left) / box.width) * view.extent;
    };
    track.addEventListener('pointerdown', (event) => {
      track.setPointerCapture(event.pointerId);
      const t = time(event);
      grip = t >= view.from && t <= view.to ? t - view.from : (view.to - view.from) / 2;
      this.setView(t - grip, t - grip + (view.to - view.from));
    });
    track.addEventListener('pointermove', (event) => {
      if (grip === null) return;
      const from = time(event) - grip;
      this.setView(from, from + (view.to - view.from));
    });
    track.addEventListener('pointerup', () => {
      grip = null;
    });
  }
}
