// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of sensors that are not connected.

use overhear_directory::NotConnectedRecord;
use overhear_session::format::printable;
use overhear_session::not_connected::NotConnectedListing;

use super::columns::Table;
use super::width::Width;
use crate::format::{csv_text, Format};

/// The columns in CSV.
pub(crate) const CSV_COLUMNS: [&str; 6] = ["id", "comm", "pid", "uid", "count", "message"];

/// Renders the listing, as text for lines of this width; `None` where there is nothing to show.
#[must_use]
pub(crate) fn render(
    listing: &NotConnectedListing,
    format: Format,
    width: Width,
) -> Option<String> {
    let row = |sensor: &NotConnectedRecord| -> [String; CSV_COLUMNS.len()] {
        [
            sensor.sensor.clone(),
            sensor.comm.clone(),
            sensor.pid.to_string(),
            sensor.uid.to_string(),
            sensor.count.to_string(),
            sensor.message.clone(),
        ]
    };
    let rows = listing.sensors.iter().map(row);
    match format {
        Format::Json => Some(serde_json::to_string_pretty(listing).unwrap_or_default() + "\n"),
        Format::Csv => Some(csv_text(&CSV_COLUMNS, rows)),
        Format::Text if listing.sensors.is_empty() => None,
        Format::Text => {
            let mut table = Table::new(&[
                ("sensor", false),
                ("task", false),
                ("uid", true),
                ("attempts", true),
                ("not connected because", false),
            ])
            .keys(2);
            for sensor in &listing.sensors {
                table.row(vec![
                    printable(&sensor.sensor),
                    printable(&format!("{}({})", sensor.comm, sensor.pid)),
                    sensor.uid.to_string(),
                    sensor.count.to_string(),
                    printable(&sensor.message),
                ]);
            }
            Some(table.render(width))
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_directory::NotConnectedRecord;

    use super::{render, NotConnectedListing};
    use crate::format::Format;
    use crate::text::width::Width;

    #[test]
    fn every_format_has_sensor_and_reason() {
        let mut listing = NotConnectedListing {
            overhear_version: "0.1.0".to_string(),
            socket: "/run/overhear/directory.sock".to_string(),
            sensors: vec![NotConnectedRecord {
                pid: 4711,
                uid: 1000,
                comm: "ser\u{1b}ver".to_string(),
                sensor: "queue".to_string(),
                message: "its buffer exceeds the quota, by far".to_string(),
                count: 2,
            }],
        };
        let width = Width::columns(200);
        let text = render(&listing, Format::Text, width).unwrap();
        for part in ["queue", "(4711)", "1000", "2", "by far"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let json = render(&listing, Format::Json, width).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["sensors"][0]["count"], 2);
        let csv = render(&listing, Format::Csv, width).unwrap();
        assert_eq!(csv.lines().count(), 2);
        assert!(csv
            .lines()
            .nth(1)
            .unwrap()
            .ends_with(",\"its buffer exceeds the quota, by far\""));
        listing.sensors.clear();
        assert!(render(&listing, Format::Text, width).is_none());
    }
}
