// SPDX-License-Identifier: MIT OR Apache-2.0
// What is looked at: the part of the run that is in view, the two metering lines, and what
// the pointer is on. All times are nanoseconds since the run's origin.

// Below a few nanoseconds per hundred pixels there is nothing left to see.
const LEAST_SPAN = 100;

class View {
  constructor(model) {
    this.extent = model.extent;
    this.from = 0;
    this.to = model.extent;
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
