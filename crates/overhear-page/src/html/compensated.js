// SPDX-License-Identifier: MIT OR Apache-2.0
// Compensated time: the cost of observing is subtracted from the time stamps. The document has the
// shrink of each interval and element. A second model is built from them on request.

/** Decodes whole numbers of seven bits a byte, the low ones first, the sign in the lowest. */
function decodeVarints(text) {
  const bytes = decodeBytes(text);
  let count = 0;
  for (let i = 0; i < bytes.length; i += 1) if (bytes[i] < 0x80) count += 1;
  const values = new Float64Array(count);
  let at = 0;
  let value = 0;
  let weight = 1;
  for (let i = 0; i < bytes.length; i += 1) {
    value += (bytes[i] & 0x7f) * weight;
    weight *= 128;
    if (bytes[i] >= 0x80) continue;
    values[at++] = value % 2 ? -(value + 1) / 2 : value / 2;
    value = 0;
    weight = 1;
  }
  return values;
}

function isCompensable(raw) {
  return Number.isFinite(raw?.moved_end_ns);
}

function compensatedThread(thread) {
  const shrinks = decodeVarints(thread.shrinks);
  const lengths = Float64Array.from(decodeColumn(thread.lengths, Uint32Array));
  // A piece of an interval may shrink by more than its length: then the pieces before it are long
  // enough.
  for (let i = 0; i < Math.min(lengths.length, shrinks.length); i += 1) lengths[i] -= shrinks[i];
  return { ...thread, lengths, first_ns: Math.max(0, (Number(thread.first_ns) || 0) - (Number(thread.delay_ns) || 0)) };
}

function compensatedSensor(sensor) {
  const shrinks = decodeVarints(sensor.shrinks);
  const times = elementTimes(NaN, sensor);
  let delay = 0;
  for (let i = 0; i < times.length; i += 1) {
    delay += shrinks[i] ?? 0;
    times[i] -= delay;
  }
  return { ...sensor, times };
}

/** The document as it would be if observing cost nothing. */
function compensated(raw) {
  return {
    ...raw,
    end_ns: raw.moved_end_ns,
    threads: list(raw.threads).map(compensatedThread),
    sensors: list(raw.sensors).map(compensatedSensor),
    gaps: list(raw.gaps).map((gap) => (Array.isArray(gap.moved) ? { ...gap, from_ns: gap.moved[0], to_ns: gap.moved[1] } : gap)),
  };
}

/** The choice of time stamps: the recorded ones or, if costs are known, the compensated ones. It
 *  replaces the models in `runs`. */
class TimeChoice {
  #recorded;
  #compensated = [];

  constructor(runs, documents) {
    this.runs = runs;
    this.documents = documents;
    this.isCompensated = false;
    this.#recorded = runs.slice();
  }

  get isThere() {
    return this.documents.some(isCompensable) || this.#compensated.length > 0;
  }

  /** Appends news of the first run, in recorded and in compensated time. Returns true if something
   *  needs a row. */
  append(timeline, moved) {
    const [recorded] = this.#recorded;
    const isNew = recorded.append(timeline);
    if (!moved) return isNew;
    this.#compensated[0] ??= new Model({}, recorded.report, recorded.label);
    return this.#compensated[0].append(moved) || isNew;
  }

  /** The length of the longest run as recorded: both have one scale. */
  get extent() {
    return Math.max(...this.#recorded.map((run) => run.extent));
  }

  set(isCompensated) {
    this.isCompensated = isCompensated;
    this.documents.forEach((raw, i) => {
      const { report, label } = this.#recorded[i];
      if (isCompensated && isCompensable(raw)) this.#compensated[i] ??= new Model(compensated(raw), report, label);
      this.runs[i] = (isCompensated && this.#compensated[i]) || this.#recorded[i];
    });
  }

  /** How much earlier each run would have ended. */
  text() {
    if (!this.isCompensated) return '';
    if (!this.documents.some(isCompensable)) return 'times less what observing has cost';
    const earlier = this.documents.filter(isCompensable).map((raw) => formatDuration(raw.end_ns - raw.moved_end_ns));
    return `without its observation the run ends ${earlier.join(' and ')} earlier`;
  }
}
