// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of sensors, as text and CSV.

use overhear_event::Nanos;
use overhear_session::format::{printable, rate};
use overhear_session::identity::FieldIdentity;
use overhear_session::listing::Listing;
use overhear_session::quantities::DeclaredReport;

use super::columns::Table;
use super::width::Width;
use crate::format::{csv_text, json_text, Format};

/// Renders the listing, as text for lines of this width; `None` where there is nothing to show.
#[must_use]
pub(crate) fn render(listing: &Listing, format: Format, width: Width) -> Option<String> {
    match format {
        Format::Json => Some(json_text(listing)),
        Format::Csv => Some(csv(listing)),
        Format::Text => (!listing.sensors.is_empty()).then(|| text(listing, width)),
    }
}

fn text(listing: &Listing, width: Width) -> String {
    let mut table = Table::new(&[
        ("sensor", false),
        ("task", false),
        ("kind", false),
        ("declared", false),
        ("elements", true),
        ("refused", true),
        ("capacity", true),
        ("state", false),
        ("uid", true),
        ("monitors", true),
        ("type and fields", false),
    ])
    .keys(2);
    for sensor in &listing.sensors {
        let kind = match sensor.lanes {
            0 => sensor.kind.clone(),
            lanes => format!("{} x {lanes}", sensor.kind),
        };
        let identity = &sensor.identity;
        let refused = sensor.lost_nested.saturating_add(sensor.lost_full);
        table.row(vec![
            printable(&identity.name()),
            printable(&identity.task),
            kind,
            promise(identity.declared),
            sensor.elements.to_string(),
            match refused {
                0 => "-".to_string(),
                some => some.to_string(),
            },
            sensor.capacity.to_string(),
            sensor.state.name().to_string(),
            sensor.uid.to_string(),
            sensor.monitors.to_string(),
            printable(&format!(
                "{} {}",
                identity.type_id,
                fields(&identity.fields)
            )),
        ]);
    }
    table.render(width)
}

/// `1.00 kHz (T 1.00 ms, D 100 us, tau 5.00 ms)`, or `-`.
fn promise(declared: Option<DeclaredReport>) -> String {
    declared.map_or_else(
        || "-".to_string(),
        |declared| {
            let time = |ns| Nanos::from_ns(ns).to_string();
            format!(
                "{} (T {}, D {}, tau {})",
                rate(1e9 / declared.period_ns.max(1) as f64),
                time(declared.period_ns),
                time(declared.distance_ns),
                time(declared.jitter_ns)
            )
        },
    )
}

/// `{ depth u32, wait u64 ns }`.
fn fields(fields: &[FieldIdentity]) -> String {
    if fields.is_empty() {
        return "{}".to_string();
    }
    let fields: Vec<String> = fields
        .iter()
        .map(|field| {
            let unit = if field.unit.is_empty() { "" } else { " " };
            format!("{} {}{unit}{}", field.name, field.kind, field.unit)
        })
        .collect();
    format!("{{ {} }}", fields.join(", "))
}

/// The columns in CSV.
pub(crate) const CSV_COLUMNS: [&str; 20] = [
    "stream",
    "task",
    "pid",
    "id",
    "instance",
    "type",
    "fields",
    "period_ns",
    "distance_ns",
    "jitter_ns",
    "kind",
    "lanes",
    "capacity",
    "bytes",
    "elements",
    "lost_nested",
    "lost_full",
    "state",
    "uid",
    "monitors",
];

fn csv(listing: &Listing) -> String {
    let rows = listing.sensors.iter().map(|sensor| {
        let identity = &sensor.identity;
        let declared = |pick: fn(DeclaredReport) -> u64| {
            identity
                .declared
                .map_or_else(String::new, |declared| pick(declared).to_string())
        };
        let row: [String; CSV_COLUMNS.len()] = [
            identity.stream.to_string(),
            identity.task.clone(),
            identity.pid.to_string(),
            identity.id.clone(),
            identity.instance.clone(),
            identity.type_id.clone(),
            fields(&identity.fields),
            declared(|declared| declared.period_ns),
            declared(|declared| declared.distance_ns),
            declared(|declared| declared.jitter_ns),
            sensor.kind.clone(),
            sensor.lanes.to_string(),
            sensor.capacity.to_string(),
            sensor.bytes.to_string(),
            sensor.elements.to_string(),
            sensor.lost_nested.to_string(),
            sensor.lost_full.to_string(),
            sensor.state.name().to_string(),
            sensor.uid.to_string(),
            sensor.monitors.to_string(),
        ];
        row
    });
    csv_text(&CSV_COLUMNS, rows)
}

#[cfg(test)]
mod tests {
    use super::{render, Listing};
    use crate::format::Format;
    use crate::testing::{declared_stream, plain_stream};
    use crate::text::width::Width;
    use overhear_session::identity::Identity;
    use overhear_session::listing::{Listed, State};

    fn listing() -> Listing {
        let on = Listed {
            identity: Identity::of(&declared_stream()),
            kind: "simple".to_string(),
            lanes: 0,
            capacity: 4096,
            bytes: 102_400,
            elements: 12_345,
            lost_nested: 0,
            lost_full: 0,
            state: State::On,
            uid: 1000,
            monitors: 1,
        };
        let laned = Listed {
            identity: Identity::of(&plain_stream()),
            kind: "laned".to_string(),
            lanes: 8,
            elements: 7,
            lost_nested: 2,
            lost_full: 3,
            state: State::Off,
            monitors: 0,
            ..on.clone()
        };
        Listing {
            overhear_version: "0.1.0".to_string(),
            socket: "/run/overhear/directory.sock".to_string(),
            sensors: vec![on, laned],
        }
    }

    #[test]
    fn table_has_one_line_per_sensor() {
        insta::assert_snapshot!(render(&listing(), Format::Text, Width::UNLIMITED).unwrap(), @r#"
        sensor    task          kind       declared                                     elements  refused  capacity  state   uid  monitors  type and fields
        queue#in  server(4711)  simple     1.00 kHz (T 1.00 ms, D 100 us, tau 5.00 ms)     12345        -      4096  on     1000         1  queue { wait u64 ns, load f32 %, label text[12] }
        job       server(4711)  laned x 8  -                                                   7        5      4096  off    1000         0  job { number i64 }
        "#);
    }

    #[test]
    fn csv_has_a_row_for_each_sensor() {
        insta::assert_snapshot!(render(&listing(), Format::Csv, Width::columns(80)).unwrap(), @r#"
        stream,task,pid,id,instance,type,fields,period_ns,distance_ns,jitter_ns,kind,lanes,capacity,bytes,elements,lost_nested,lost_full,state,uid,monitors
        3,server(4711),4711,queue,in,queue,"{ wait u64 ns, load f32 %, label text[12] }",1000000,100000,5000000,simple,0,4096,102400,12345,0,0,on,1000,1
        4,server(4711),4711,job,,job,{ number i64 },,,,laned,8,4096,102400,7,2,3,off,1000,0
        "#);
    }

    #[test]
    fn json_has_the_documented_keys() {
        insta::assert_snapshot!(render(&listing(), Format::Json, Width::columns(80)).unwrap(), @r#"
        {
          "overhear_version": "0.1.0",
          "socket": "/run/overhear/directory.sock",
          "sensors": [
            {
              "stream": 3,
              "task": "server(4711)",
              "pid": 4711,
              "id": "queue",
              "instance": "in",
              "type": "queue",
              "fields": [
                {
                  "name": "wait",
                  "kind": "u64",
                  "unit": "ns"
                },
                {
                  "name": "load",
                  "kind": "f32",
                  "unit": "%"
                },
                {
                  "name": "label",
                  "kind": "text[12]",
                  "unit": ""
                }
              ],
              "declared": {
                "period_ns": 1000000,
                "distance_ns": 100000,
                "jitter_ns": 5000000
              },
              "kind": "simple",
              "lanes": 0,
              "capacity": 4096,
              "bytes": 102400,
              "elements": 12345,
              "lost_nested": 0,
              "lost_full": 0,
              "state": "on",
              "uid": 1000,
              "monitors": 1
            },
            {
              "stream": 4,
              "task": "server(4711)",
              "pid": 4711,
              "id": "job",
              "instance": "",
              "type": "job",
              "fields": [
                {
                  "name": "number",
                  "kind": "i64",
                  "unit": ""
                }
              ],
              "declared": null,
              "kind": "laned",
              "lanes": 8,
              "capacity": 4096,
              "bytes": 102400,
              "elements": 7,
              "lost_nested": 2,
              "lost_full": 3,
              "state": "off",
              "uid": 1000,
              "monitors": 0
            }
          ]
        }
        "#);
    }

    #[test]
    fn empty_list_is_no_table() {
        let mut nothing = listing();
        nothing.sensors.clear();
        assert_eq!(render(&nothing, Format::Text, Width::UNLIMITED), None);
        assert!(render(&nothing, Format::Csv, Width::UNLIMITED)
            .unwrap()
            .starts_with("stream,"));
    }
}
