// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of POSIX trace streams.

use overhear_session::format::printable;
use overhear_session::posix::{PosixListing, PosixStream};

use super::columns::Table;
use super::width::Width;

/// Event types in a cell, at most; JSON has all.
const MAX_NAMES: usize = 6;

/// Renders the streams for lines of this width.
#[must_use]
pub(crate) fn render(listing: &PosixListing, width: Width) -> String {
    let mut table = Table::new(&[
        ("process", false),
        ("stream", false),
        ("state", false),
        ("policy", false),
        ("capacity", true),
        ("recorded", true),
        ("lost: full", true),
        ("overwritten", true),
        ("children", false),
        ("log", false),
        ("controller", true),
        ("event types", false),
    ])
    .keys(2);
    for stream in &listing.streams {
        table.row(row(stream));
    }
    table.render(width)
}

fn row(stream: &PosixStream) -> Vec<String> {
    let or_dash = |count: u64| match count {
        0 => "-".to_string(),
        some => some.to_string(),
    };
    let yes = |yes: bool| if yes { "yes" } else { "-" }.to_string();
    vec![
        printable(&stream.task),
        match stream.name.as_str() {
            "" => "(no name)".to_string(),
            name => printable(name),
        },
        match stream.full {
            true => format!("{}, full", stream.state),
            false => stream.state.to_string(),
        },
        stream.policy.to_string(),
        stream.capacity.to_string(),
        stream.recorded.to_string(),
        or_dash(stream.lost_full),
        or_dash(stream.overwritten),
        yes(stream.inherited),
        yes(stream.log),
        stream.controller.to_string(),
        event_types(&stream.event_types),
    ]
}

fn event_types(names: &[String]) -> String {
    let shown: Vec<String> = names
        .iter()
        .take(MAX_NAMES)
        .map(|name| printable(name))
        .collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 if shown.is_empty() => "-".to_string(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use overhear_session::posix::{PosixListing, PosixStream};

    use super::render;
    use crate::text::width::Width;

    #[test]
    fn table_shows_state_losses_and_names() {
        let listing = PosixListing {
            overhear_version: "0.1.0".to_string(),
            socket: "/run/overhear/directory.sock".to_string(),
            processes: 2,
            streams: vec![
                PosixStream {
                    task: "ser\u{1b}ver(4711)".to_string(),
                    pid: 4711,
                    uid: 1000,
                    name: "requests".to_string(),
                    state: "running",
                    full: true,
                    policy: "until_full",
                    inherited: true,
                    traced: vec![4711, 4713],
                    log: false,
                    controller: 4712,
                    capacity: 1024,
                    max_data_size: 80,
                    recorded: 1030,
                    lost_full: 6,
                    overwritten: 0,
                    event_types: ["a", "b", "c", "d", "e", "f", "g", "h"]
                        .map(String::from)
                        .into(),
                },
                PosixStream {
                    task: "other(9)".to_string(),
                    pid: 9,
                    uid: 0,
                    name: String::new(),
                    state: "suspended",
                    full: false,
                    policy: "loop",
                    inherited: false,
                    traced: vec![9],
                    log: true,
                    controller: 9,
                    capacity: 64,
                    max_data_size: 8,
                    recorded: 70,
                    lost_full: 0,
                    overwritten: 6,
                    event_types: Vec::new(),
                },
            ],
            notes: Vec::new(),
        };
        insta::assert_snapshot!(render(&listing, Width::UNLIMITED), @r"
        process           stream     state          policy      capacity  recorded  lost: full  overwritten  children  log  controller  event types
        ser\x1bver(4711)  requests   running, full  until_full      1024      1030           6            -  yes       -          4712  a, b, c, d, e, f and 2 more
        other(9)          (no name)  suspended      loop              64        70           -            6  -         yes           9  -
        ");
    }
}
