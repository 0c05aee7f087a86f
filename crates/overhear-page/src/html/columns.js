// SPDX-License-Identifier: MIT OR Apache-2.0
// From columns of data to columns of pixels.
//
// Each pixel column of a row gets a state. A column inside one interval gets that interval's state.
// A column with one change in it gets the state that fills more of it. With more than one change
// the picture would hide switches, so the column is HIDDEN and has each state's share of its time
// instead. The work is one binary search per column or per interval, whichever are fewer: O(width *
// log n).

const HIDDEN = 7;
const EDGE = 8;

/** Memory for one row's pixel columns, used again for every row of every frame. */
class Columns {
  constructor(width) {
    this.width = width;
    this.kind = new Uint8Array(width);
    // Index of the interval that a column shows, if it shows one.
    this.at = new Int32Array(width);
    this.count = new Uint32Array(width);
    this.shares = new Float32Array(width * STATES);
    // Intervals that are wide enough for a label: triples of first column, end column, index.
    this.wide = [];
    this.hidden = 0;
    // For elements: the maximum number in one column, and their mean distance in columns.
    this.most = 0;
    this.spacing = width;
    this.before = new Float64Array(STATES);
    this.after = new Float64Array(STATES);
    // For numbers: least and greatest value of a column, and the last value up to its end.
    this.low = new Float64Array(width);
    this.high = new Float64Array(width);
    this.last = new Float64Array(width);
  }

  clear() {
    this.wide.length = 0;
    this.hidden = 0;
  }

  /** Fills the columns from intervals. `perColumn` is a column's time in ns, and
   *  intervals of at least `wideFrom` columns are noted for labels. */
  fromIntervals(intervals, from, perColumn, wideFrom) {
    this.clear();
    const { width, kind } = this;
    const { starts, count } = intervals;
    let x = 0;
    while (x < width) {
      const left = from + x * perColumn;
      const right = from + (x + 1) * perColumn;
      const at = upperBound(starts, left) - 1;
      const end = at >= count ? Infinity : starts[at + 1];
      if (end >= right) {
        const until = end === Infinity ? width : Math.max(x + 1, Math.min(width, Math.floor((end - from) / perColumn)));
        const state = intervals.stateAt(at);
        kind.fill(state, x, until);
        this.at.fill(at, x, until);
        if (until - x >= wideFrom && state === STATE.RUNNING) this.wide.push(x, until, at);
        x = until;
        continue;
      }
      // The first interval that starts within this column is at + 1: check whether it is the only
      // one.
      const second = at + 2 <= count ? starts[at + 2] : Infinity;
      if (second >= right) {
        const here = intervals.stateAt(at);
        const next = intervals.stateAt(at + 1);
        this.at[x] = end - left > right - end ? at : at + 1;
        if (here === next) kind[x] = here === STATE.ABSENT ? here : EDGE;
        else kind[x] = intervals.stateAt(this.at[x]);
      } else {
        kind[x] = HIDDEN;
        this.hidden += 1;
        const before = intervals.sumsUntil(left, this.before);
        const after = intervals.sumsUntil(right, this.after);
        let shown = 0;
        for (let s = 1; s < STATES; s += 1) {
          const share = (after[s] - before[s]) / perColumn;
          this.shares[x * STATES + s] = share;
          shown += share;
        }
        // Time without a state is before the first interval or after the last one.
        this.shares[x * STATES] = 1 - shown;
      }
      x += 1;
    }
  }

  /** Fills the columns from a sensor's elements, with the number of elements in each. */
  fromElements(elements, from, perColumn) {
    this.clear();
    const { width, count } = this;
    const { times } = elements;
    count.fill(0);
    let index = lowerBound(times, from);
    const end = lowerBound(times, from + width * perColumn, index);
    this.most = 0;
    this.spacing = width / Math.max(1, end - index);
    // With fewer elements than columns each element is visited once, else each column.
    if (end - index <= width) {
      for (; index < end; index += 1) {
        const x = Math.min(width - 1, Math.floor((times[index] - from) / perColumn));
        count[x] += 1;
      }
    } else {
      for (let x = 0; x < width; x += 1) {
        const next = lowerBound(times, from + (x + 1) * perColumn, index, end);
        count[x] = next - index;
        index = next;
      }
    }
    for (let x = 0; x < width; x += 1) {
      if (count[x] > this.most) this.most = count[x];
      if (count[x] > 1) this.hidden += 1;
    }
  }

  /** Fills the columns from a sensor's elements and the numbers of one of its fields. After
   *  `until`, the end of the run, there is no last value any more. */
  fromSeries(elements, series, from, perColumn, until) {
    this.fromElements(elements, from, perColumn);
    const { width, count, low, high, last } = this;
    let index = lowerBound(elements.times, from);
    let value = index > 0 ? series.values[index - 1] : NaN;
    for (let x = 0; x < width; x += 1) {
      if (count[x]) {
        const next = Math.min(index + count[x], series.count);
        const found = series.range(index, next);
        low[x] = found.low;
        high[x] = found.high;
        if (next > 0) value = series.values[next - 1];
        index += count[x];
      }
      last[x] = from + x * perColumn < until ? value : NaN;
    }
  }

  /** Marks every column that a gap touches, and some around it: a loss of a
   *  nanosecond must not be too thin to be seen. */
  fromGaps(gaps, from, perColumn, leastWidth) {
    this.clear();
    const { width, kind } = this;
    const { starts, states, count } = gaps.intervals;
    kind.fill(STATE.ABSENT);
    const last = from + width * perColumn;
    let at = Math.max(0, upperBound(starts, from) - 1);
    while (at < count && starts[at] < last) {
      if (states[at] !== STATE.MISSED) {
        at += 1;
        continue;
      }
      const x0 = Math.floor((starts[at] - from) / perColumn);
      const x1 = Math.max(Math.ceil((starts[at + 1] - from) / perColumn), x0 + leastWidth);
      kind.fill(STATE.MISSED, Math.max(0, x0), Math.max(0, Math.min(width, x1)));
      // Intervals that start within the columns just filled are drawn already.
      at = Math.max(at + 1, upperBound(starts, from + x1 * perColumn) - 1);
    }
  }
}
