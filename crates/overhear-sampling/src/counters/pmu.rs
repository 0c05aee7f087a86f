// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices with counters, as sysfs describes them: `DEVICE/term=value,term/`.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

/// Where the kernel lists the devices.
pub(super) const DEVICES: &str = "/sys/bus/event_source/devices";

/// An event of a device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DeviceEvent {
    pub(super) kind: u32,
    pub(super) config: [u64; 3],
    /// The value of the term `name`.
    pub(super) name: Option<String>,
}

/// The event that these terms describe; the error continues "is invalid: ".
pub(super) fn resolve(devices: &Path, device: &str, terms: &str) -> Result<DeviceEvent, String> {
    let is_name = |name: &str| !name.is_empty() && !name.contains(['/', '.']);
    let folder = devices.join(device);
    let kind = fs::read_to_string(folder.join("type"))
        .ok()
        .filter(|_| is_name(device));
    let Some(kind) = kind.and_then(|kind| kind.trim().parse().ok()) else {
        let mut known: Vec<String> = fs::read_dir(devices)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        known.sort_unstable();
        let known = known.join(", ");
        return Err(format!("there is no device `{device}`; there are {known}"));
    };
    let mut event = DeviceEvent {
        kind,
        config: [0; 3],
        name: None,
    };
    for term in terms.split(',').filter(|term| !term.is_empty()) {
        let alias = (is_name(term) && !term.contains('='))
            .then(|| fs::read_to_string(folder.join("events").join(term)).ok());
        match alias.flatten() {
            Some(terms) => {
                for term in terms.trim().split(',') {
                    apply(&mut event, &folder, term)?;
                }
            }
            None => apply(&mut event, &folder, term)?,
        }
    }
    Ok(event)
}

/// Stores the value of a term in the bits that its format names.
fn apply(event: &mut DeviceEvent, folder: &Path, term: &str) -> Result<(), String> {
    let (name, value) = term.split_once('=').unwrap_or((term, "1"));
    if name == "name" {
        event.name = Some(value.to_owned());
        return Ok(());
    }
    let number = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => value.parse(),
    };
    let number = number.map_err(|_| format!("`{value}` in `{term}` is not a number"))?;
    let format = match name {
        "config" | "config1" | "config2" => format!("{name}:0-63"),
        _ => {
            let path = folder.join("format").join(name.replace(['/', '.'], "?"));
            fs::read_to_string(&path)
                .map_err(|_| format!("the device has no event and no term `{name}`"))?
        }
    };
    let (word, ranges) = parse_format(&format).ok_or_else(|| {
        format!(
            "the format of `{name}` is not understood: {}",
            format.trim()
        )
    })?;
    let mut rest = number;
    for range in ranges {
        let (low, bits) = (*range.start(), range.end() - range.start() + 1);
        let mask = u64::MAX >> (64 - bits);
        event.config[word] = event.config[word] & !(mask << low) | (rest & mask) << low;
        rest = rest.checked_shr(bits).unwrap_or(0);
    }
    match rest {
        0 => Ok(()),
        _ => Err(format!("`{value}` has more bits than the term `{name}`")),
    }
}

/// A format like `config1:0-7,32`: the index of the word, and its ranges of bits.
fn parse_format(format: &str) -> Option<(usize, Vec<RangeInclusive<u32>>)> {
    let (word, ranges) = format.trim().split_once(':')?;
    let word = ["config", "config1", "config2"]
        .iter()
        .position(|name| *name == word)?;
    let ranges = ranges.split(',').map(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let range = low.parse::<u32>().ok()?..=high.parse::<u32>().ok()?;
        (!range.is_empty() && *range.end() < 64).then_some(range)
    });
    Some((word, ranges.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{resolve, DeviceEvent};

    fn fixture(root: &Path) {
        let files = [
            ("cpu/type", "4\n"),
            ("cpu/format/event", "config:0-7,32-35\n"),
            ("cpu/format/umask", "config:8-15\n"),
            ("cpu/format/edge", "config:18\n"),
            ("cpu/format/ldlat", "config1:0-15\n"),
            ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
        ];
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn terms_fill_the_bits_of_their_formats() {
        let root = tempfile::tempdir().unwrap();
        fixture(root.path());
        let resolve = |terms| resolve(root.path(), "cpu", terms);
        let event = |config| DeviceEvent {
            kind: 4,
            config,
            name: None,
        };
        assert_eq!(resolve("event=0x3c,umask=1"), Ok(event([0x13c, 0, 0])));
        assert_eq!(
            resolve("event=0xfc0,edge"),
            Ok(event([0xf_0004_00c0, 0, 0]))
        );
        assert_eq!(resolve("mem-loads"), Ok(event([0x1cd, 3, 0])));
        assert_eq!(
            resolve("mem-loads,ldlat=30"),
            Ok(event([0x1cd, 30, 0])),
            "later terms replace earlier ones"
        );
        assert_eq!(resolve("config=5,config2=6"), Ok(event([5, 0, 6])));
        assert_eq!(resolve("event=1,name=x").unwrap().name.unwrap(), "x");
    }

    #[test]
    fn mistakes_are_explained() {
        let root = tempfile::tempdir().unwrap();
        fixture(root.path());
        let refused = |device, terms| resolve(root.path(), device, terms).unwrap_err();
        assert_eq!(
            refused("gpu", "event=1"),
            "there is no device `gpu`; there are cpu"
        );
        assert!(refused("../cpu", "event=1").starts_with("there is no device"));
        assert_eq!(
            refused("cpu", "evnt=1"),
            "the device has no event and no term `evnt`"
        );
        assert_eq!(
            refused("cpu", "event=x"),
            "`x` in `event=x` is not a number"
        );
        assert_eq!(
            refused("cpu", "umask=256"),
            "`256` has more bits than the term `umask`"
        );
    }
}
