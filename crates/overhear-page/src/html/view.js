// SPDX-License-Identifier: MIT OR Apache-2.0
// The state of the view: the part of the run in view, the two metering lines, and the row and time
// under the pointer. All times are nanoseconds since the run's origin.

// Below a few nanoseconds per hundred pixels there are no more details.
const LEAST_SPAN = 100;

class View {
  constructor(extent) {
    this.extent = extent;
    this.from = 0;
    this.to = extent;
    this.showWakes = true;
    this.meter = [null, null];
    this.hover = null;
    this.selection = null;
    this.dragging = false;
  }

  /** Shows `from` to `to`, moved and cut so that it stays within the run. */
  set(from, to) {
    const span = Math.min(this.extent, Math.max(LEAST_SPAN, to - from));
    const middle = (from + to) / 2;
    const start = to - from === span ? from : middle - span / 2;
    this.from = Math.min(Math.max(0, start), this.extent - span);
    this.to = this.from + span;
  }

  /** Zooms so that the moment `t` stays where it is. */
  zoom(factor, t) {
    const span = Math.min(this.extent, Math.max(LEAST_SPAN, (this.to - this.from) * factor));
    const share = (t - this.from) / (this.to - this.from);
    this.set(t - share * span, t - share * span + span);
  }

  move(ns) {
    this.set(this.from + ns, this.to + ns);
  }

  /** The run has grown. The shown part stays, with two exceptions: a view of the whole run stays
   *  whole, and a view that follows the run stays at its end. */
  grow(extent, follow) {
    const whole = this.isWhole();
    const span = this.to - this.from;
    this.extent = Math.max(this.extent, extent);
    if (whole) this.set(0, this.extent);
    else if (follow) this.set(this.extent - span, this.extent);
  }

  /** The time between the metering lines, else the part in view. */
  get interval() {
    const [a, b] = this.meter;
    if (a === null || b === null || a === b) return [this.from, this.to];
    return [Math.min(a, b), Math.max(a, b)];
  }

  isWhole() {
    return this.to - this.from >= this.extent;
  }

  meterText() {
    const [a, b] = this.meter;
    const parts = [];
    if (a !== null) parts.push(`A ${formatExact(a)}`);
    if (b !== null) parts.push(`B ${formatExact(b)}`);
    if (a !== null && b !== null) parts.push(`between ${formatExact(Math.abs(b - a))}`);
    return parts.join('  ');
  }
}
