// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of recordings on the disk, as users write them.

pub use overhear_budget::ByteRate;
pub use overhear_trace::DiskLimits;

/// Units of bytes.
const UNITS: [(&str, f64); 9] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1024.0 * 1024.0),
    ("GiB", 1024.0 * 1024.0 * 1024.0),
];

/// The smallest limits, as users write them. A test compares them with [`DiskLimits`].
const LEAST_RATE: &str = "16KiB/s";
const LEAST_SIZE: &str = "1MiB";

/// A number of bytes with or without a unit.
fn bytes(text: &str) -> Option<f64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let unit = text[digits.len()..].trim();
    let unit = match unit {
        "" => 1.0,
        unit => UNITS.iter().find(|(name, _)| *name == unit)?.1,
    };
    let number: f64 = digits.trim_end().parse().ok()?;
    let bytes = number * unit;
    bytes.is_finite().then_some(bytes)
}

/// The value of `--disk-budget`: bytes per second, as in `10MB/s`.
///
/// # Errors
/// A message with the smallest rate.
pub fn parse_rate(text: &str) -> Result<ByteRate, String> {
    let number = text.trim();
    let number = number.strip_suffix("/s").unwrap_or(number);
    let Some(bytes) = bytes(number) else {
        return Err(format!(
            "`{text}` is no rate; give bytes per second, for example 10MB/s"
        ));
    };
    let rate = ByteRate::per_second(bytes).ok();
    let rate = rate.filter(|_| bytes >= DiskLimits::LEAST_RATE as f64);
    rate.ok_or_else(|| {
        format!("a disk budget of `{text}` has no room for a packet; give at least {LEAST_RATE}")
    })
}

/// The value of `--max-size`: bytes, as in `2GB`.
///
/// # Errors
/// A message with the smallest size.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let Some(bytes) = bytes(text) else {
        return Err(format!(
            "`{text}` is no size; give bytes, for example 500MB or 2GiB"
        ));
    };
    if bytes < DiskLimits::LEAST_BYTES as f64 {
        return Err(format!(
            "a recording of at most `{text}` has no room for elements; give at least {LEAST_SIZE}"
        ));
    }
    // A float above the range becomes the largest number.
    Ok(bytes as u64)
}

/// The limits that hold: those of the command line, else the file's.
#[must_use]
pub(crate) fn chosen(named: DiskLimits, file: DiskLimits) -> DiskLimits {
    DiskLimits {
        rate: named.rate.or(file.rate),
        max_bytes: named.max_bytes.or(file.max_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::{chosen, parse_rate, parse_size, DiskLimits, LEAST_RATE, LEAST_SIZE};

    #[test]
    fn rates_and_sizes_have_units() {
        for (text, bytes) in [
            ("2GB", 2_000_000_000),
            ("1.5 MiB", 1_572_864),
            (" 1048576", 1 << 20),
            ("1048576B", 1 << 20),
            ("2000kB", 2_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            for suffix in ["", "/s"] {
                let rate = parse_rate(&format!("{text}{suffix}")).unwrap();
                assert_eq!(rate.as_bytes_per_second(), bytes as f64, "{text}");
            }
        }
    }

    #[test]
    fn stated_minimum_is_accepted() {
        assert_eq!(parse_size(LEAST_SIZE), Ok(DiskLimits::LEAST_BYTES));
        let rate = parse_rate(LEAST_RATE).unwrap();
        assert_eq!(rate.as_bytes_per_second(), DiskLimits::LEAST_RATE as f64);
    }

    #[test]
    fn impossible_limits_are_refused_with_the_minimum() {
        for text in ["0", "-5MB/s", "16383B/s", "1e3"] {
            assert_eq!(
                parse_rate(text).unwrap_err(),
                format!(
                    "a disk budget of `{text}` has no room for a packet; give at least 16KiB/s"
                )
            );
        }
        for text in ["0", "-2GB", "1MB"] {
            assert_eq!(
                parse_size(text).unwrap_err(),
                format!(
                    "a recording of at most `{text}` has no room for elements; give at least 1MiB"
                )
            );
        }
        for text in ["", "much", "5 apples/s", "nan", "inf", "1e999GB", "10mb/s"] {
            assert_eq!(
                parse_rate(text).unwrap_err(),
                format!("`{text}` is no rate; give bytes per second, for example 10MB/s")
            );
        }
        assert_eq!(
            parse_size("2GB/s").unwrap_err(),
            "`2GB/s` is no size; give bytes, for example 500MB or 2GiB"
        );
    }

    #[test]
    fn command_line_overrides_each_limit_of_the_file() {
        let file = DiskLimits {
            rate: Some(parse_rate("1MB/s").unwrap()),
            max_bytes: Some(5 << 20),
        };
        let named = DiskLimits {
            max_bytes: Some(6 << 20),
            ..DiskLimits::default()
        };
        let both = chosen(named, file);
        assert_eq!((both.rate, both.max_bytes), (file.rate, Some(6 << 20)));
    }
}
