// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers and names in messages.

/// A number with at most four significant digits, for narrow columns.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_string();
    }
    if value.fract() == 0.0 && value.abs() < 1e9 {
        return format!("{value:.0}");
    }
    let digits = value.abs().log10().floor();
    if (-3.0..9.0).contains(&digits) {
        let decimals = (3.0 - digits).max(0.0) as usize;
        format!("{value:.decimals$}")
    } else {
        format!("{value:.3e}")
    }
}

/// A rate with its unit.
pub fn rate(hz: f64) -> String {
    match hz {
        hz if hz >= 1e6 => format!("{:.2} MHz", hz / 1e6),
        hz if hz >= 1e3 => format!("{:.2} kHz", hz / 1e3),
        // An empty sum is a negative zero.
        hz => format!("{:.2} Hz", hz + 0.0),
    }
}

/// A name with escaped control characters. Names come from programs, and are printed on terminals.
pub fn printable(name: &str) -> String {
    overhear_event::printable(name).into_owned()
}

/// A number with the noun that it counts.
pub fn counted(number: u64, one: &str, several: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {several}"),
    }
}

/// A word as it would be typed in a shell.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''").replace('\n', "\\n"))
}
