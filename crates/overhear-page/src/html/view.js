// SPDX-License-Identifier: MIT OR Apache-2.0
// What is looked at: the part of the run that is in view, the two metering lines, and what
// the pointer is on. All times are nanoseconds since the run's origin.

// Below a few nanoseconds per hundred pixels there is nothing left to see.
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

  /** The run has grown. What is shown stays, but the whole stays the whole, and at the end of a
   *  run that is followed, the end. */
  grow(extent, follow) {
    const whole = this.isWhole();
    const span = this.to - this.from;
    this.extent = Math.max(this.extent, extent);
    if (whole) this.set(0, this.extent);
    else if (follow) this.set(this.extent - span, this.extent);
  }

  /** What is between the metering lines, else what is in view. */
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
