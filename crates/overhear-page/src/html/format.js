// SPDX-License-Identifier: MIT OR Apache-2.0
// Numbers and times as text. Digits are grouped by a narrow no-break space, which
// no locale confuses with a decimal mark.

const THIN = '\u202f';
const DASH = '\u2013';

/** Makes an element; `content` is text or a list of nodes, never markup. */
function make(tag, className, content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (content === undefined || content === null) return element;
  if (Array.isArray(content)) element.append(...content.filter((node) => node !== null));
  else element.textContent = String(content);
  return element;
}

const byId = (id) => document.getElementById(id);

function groupWhole(digits) {
  return digits.replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}

/** The digits after the point, in groups of three from the point on. */
function groupFraction(digits) {
  return digits.replace(/(\d{3})(?=\d)/g, `$1${THIN}`);
}

/** A count: a whole number with grouped digits. */
function formatCount(value) {
  if (!Number.isFinite(value)) return DASH;
  const sign = value < 0 ? '\u2212' : '';
  return sign + groupWhole(Math.abs(Math.round(value)).toString());
}

/** Nanoseconds as milliseconds with a fixed number of decimals and no unit. */
function formatMs(ns, decimals) {
  const sign = ns < 0 ? '\u2212' : '';
  const [whole, fraction] = (Math.abs(ns) / 1e6).toFixed(decimals).split('.');
  return sign + groupWhole(whole) + (fraction ? `.${groupFraction(fraction)}` : '');
}

/** Whole nanoseconds as milliseconds, exact: the last digit is the nanosecond. The whole and the
 *  fraction are divided separately, because the milliseconds of a long run with six decimals do not
 *  fit into a double's digits. */
function formatExact(ns) {
  const size = Math.abs(ns);
  const whole = Math.floor(size / 1e6);
  const fraction = String(size - whole * 1e6).padStart(6, '0');
  return `${ns < 0 ? '\u2212' : ''}${groupWhole(String(whole))}.${groupFraction(fraction)}${THIN}ms`;
}

/** A duration in the unit that suits its size, with four significant digits. In the column of a
 *  table, zeros at the end make it easier to read. */
function formatDuration(ns, keepZeros = false) {
  if (ns === null || ns === undefined || !Number.isFinite(ns)) return DASH;
  const size = Math.abs(ns);
  const units = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs']];
  for (const [scale, unit] of units) {
    if (size >= scale) return `${formatDigits(ns / scale, 4, keepZeros)}${THIN}${unit}`;
  }
  return `${formatDigits(ns, 4)}${THIN}ns`;
}

/** A number with at most `digits` significant digits, whole digits kept. */
function formatDigits(value, digits, keepZeros = false) {
  if (!Number.isFinite(value)) return DASH;
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-6) return value.toExponential(digits - 1);
  const magnitude = Math.floor(Math.log10(size));
  const decimals = Math.min(9, Math.max(0, digits - 1 - magnitude));
  const [whole, fraction] = size.toFixed(decimals).split('.');
  const trimmed = fraction && !keepZeros ? fraction.replace(/0+$/, '') : fraction;
  const sign = value < 0 ? '\u2212' : '';
  return sign + groupWhole(whole) + (trimmed ? `.${trimmed}` : '');
}

/** A field's value with its unit; for nanoseconds the unit is chosen by size. */
function formatValue(value, unit) {
  if (value === null || value === undefined) return DASH;
  if (typeof value !== 'number') return unit ? `${value}${THIN}${unit}` : String(value);
  if (Number.isNaN(value)) return 'not a number';
  if (unit === 'ns') return formatDuration(value);
  const text = Number.isInteger(value) && Math.abs(value) < 1e15 ? formatCount(value) : formatDigits(value, 6);
  return unit ? `${text}${THIN}${unit}` : text;
}

/** A number with three significant digits and a decimal prefix, for narrow places. */
function formatShort(value, unit) {
  if (!Number.isFinite(value)) return DASH;
  if (unit === 'ns') return formatDuration(value);
  const prefixes = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
  const [scale, prefix] = prefixes.find(([least]) => Math.abs(value) >= least) ?? [1, ''];
  const text = formatDigits(value / scale, 3);
  return prefix || unit ? `${text}${THIN}${prefix}${unit}` : text;
}

function formatBytes(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${formatDigits(bytes, unit ? 3 : 15)}${THIN}${units[unit]}`;
}

function formatShare(share) {
  const percent = share * 100;
  if (percent > 0 && percent < 0.1) return `< 0.1${THIN}%`;
  return `${formatDigits(percent, percent >= 10 ? 3 : 2)}${THIN}%`;
}

/** "1 element", "2 elements". */
function plural(count, one, many) {
  return `${formatCount(count)} ${count === 1 ? one : many || `${one}s`}`;
}
