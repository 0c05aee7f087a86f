// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plug-ins in Rust at the C border: their calls, and the effects of their panics. Plug-ins in C
//! and C++ are tested with the command line, which runs them.

mod support;

use std::sync::Arc;

use overhear_event::{
    Analysis, ElementInPlace, ElementKey, ElementView, FieldKind, Gap, GapCause, InPlaceMemory,
    StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_monitor::plugin::{Plugin, PluginUpdate, ResultValue};
use overhear_monitor::{Binding, MissedPolicy, Subscription, UpdateSet, UpdateState};

use support::{at, descriptor};

/// The plug-in that cargo builds with the tests.
fn plugin() -> Option<Plugin> {
    let here = std::env::current_exe().unwrap();
    let built = here.parent().unwrap().parent().unwrap();
    let file = built.join("examples/libfragile.so");
    if !file.exists() {
        println!("skipped: the examples are not built; type `cargo build --examples`");
        return None;
    }
    Some(Plugin::load(&file).unwrap())
}

fn create(plugin: &Plugin, name: &str, argument: &str) -> PluginUpdate {
    let mut made = plugin.create(Some(name), argument).unwrap();
    assert_eq!(made.len(), 1);
    made.remove(0)
}

fn texts(update: &mut PluginUpdate) -> Vec<String> {
    let results = update.report();
    let texts = results.iter().filter_map(|(_, returned)| match returned {
        ResultValue::Text(text) => Some(text.clone()),
        _ => None,
    });
    texts.collect()
}

/// Calls an update with one item of each kind.
fn call(update: &mut PluginUpdate, stream: &StreamDescriptor, payload: &[u8]) {
    update.open(stream);
    update.warm_up();
    update.element(&ElementView {
        stream,
        sequence: 4,
        time: at(70),
        payload,
    });
    update.gap(stream, &gap(stream));
    update.advance(at(90));
}

fn gap(stream: &StreamDescriptor) -> Gap {
    Gap {
        stream: stream.id,
        first: 5,
        missed: 3,
        from: at(70),
        to: at(80),
        cause: GapCause::Epoch,
    }
}

fn sample() -> StreamDescriptor {
    let schema = TypeSchema::builder("sample").field("value", FieldKind::I64, "mV");
    StreamDescriptor {
        schema: Arc::new(schema.build().unwrap()),
        ..(*descriptor(3, "voltage", 64)).clone()
    }
}

#[test]
fn items_cross_the_border_as_they_are() {
    let Some(plugin) = plugin() else { return };
    assert_eq!(
        plugin.names().collect::<Vec<_>>(),
        ["fragile", "faithful", "placed"]
    );
    let stream = sample();
    let expected = [
        "open program(4711)/voltage, user:voltage",
        "element 4 at 70 of voltage: -12, unit mV",
        "gap 5 + 3 from 70 to 80, epoch true",
        "advance 90",
    ];
    let mut update = create(&plugin, "faithful", "");
    call(&mut update, &stream, &(-12_i64).to_ne_bytes());
    assert_eq!(texts(&mut update), expected);
    assert_eq!((update.failure(), update.refuses(&stream)), (None, None));
    assert_eq!(update.sensors(), None);
    assert_eq!(update.missed_policy(), MissedPolicy::Continue);
    // A stream without an announcement, and payloads at any address.
    for shift in 0..8 {
        let mut update = create(&plugin, "faithful", "");
        let bytes = [&vec![0xff; shift][..], &(-12_i64).to_ne_bytes()].concat();
        update.element(&ElementView {
            stream: &stream,
            sequence: 4,
            time: at(70),
            payload: &bytes[shift..],
        });
        assert_eq!(texts(&mut update), expected[..2]);
    }
    // The thread that wrote an element is no part of its payload.
    let signed = StreamDescriptor {
        id: StreamId::from_raw(9),
        schema: Arc::new(stream.schema.with_writer().unwrap()),
        ..stream
    };
    let payload = [&[1; 8][..], &(-12_i64).to_ne_bytes()].concat();
    let mut update = create(&plugin, "faithful", "");
    call(&mut update, &signed, &payload);
    assert_eq!(texts(&mut update), expected);
}

/// Payloads in which each word contains its own number twice, after the writer if there is one.
#[derive(Debug)]
struct Numbered {
    is_whole: bool,
    shift: u64,
}

impl InPlaceMemory for Numbered {
    fn load(&self, _: u64, first: usize, to: &mut [u64]) {
        for (word, to) in (first as u64..).zip(to) {
            let number = word.wrapping_sub(self.shift) as u32;
            *to = u64::from(number) << 32 | u64::from(number);
        }
    }
    fn is_whole(&self, _: u64) -> bool {
        self.is_whole
    }
}

#[test]
fn large_elements_cross_the_border_in_place() {
    let Some(plugin) = plugin() else { return };
    let schema = TypeSchema::builder("large").field("text", FieldKind::Text(400), "");
    let schema = schema.build().unwrap();
    for (schema, shift) in [(schema.clone(), 0), (schema.with_writer().unwrap(), 1)] {
        let stream = StreamDescriptor {
            schema: Arc::new(schema),
            ..sample()
        };
        let mut update = create(&plugin, "placed", "");
        assert!(update.reads_in_place(&stream));
        assert!(!create(&plugin, "faithful", "").reads_in_place(&stream));
        // Bytes 300 to 303 are half of word 37.
        for (sequence, is_whole) in [(1, true), (2, false), (13, true), (4, true)] {
            let key = ElementKey {
                stream: &stream,
                sequence,
                time: at(70),
            };
            let payloads = Numbered { is_whole, shift };
            ElementInPlace::new(key, &payloads).evaluate(&mut update);
        }
        let results = update.report();
        let returned: Vec<(&str, &ResultValue)> = results.iter().collect();
        let expected = [
            ("sum", &ResultValue::Signed(74)),
            ("dropped", &ResultValue::Signed(74)),
        ];
        assert_eq!(
            (returned.as_slice(), update.failure()),
            (&expected[..], None)
        );
        // A panic in prepare commits nothing.
        let key = ElementKey {
            stream: &stream,
            sequence: 5,
            time: at(71),
        };
        let payloads = Numbered {
            is_whole: true,
            shift: 100,
        };
        ElementInPlace::new(key, &payloads).evaluate(&mut update);
        let failure_text = update.failure().unwrap();
        assert!(
            failure_text.contains("`prepare` failed: it panicked: it broke"),
            "{failure_text}"
        );
    }
}

#[test]
fn results_are_numbers_texts_and_documents() {
    let Some(plugin) = plugin() else { return };
    let mut update = create(&plugin, "faithful", "");
    update.advance(Timestamp::MAX);
    let results = update.report();
    let results: Vec<(&str, &ResultValue)> = results.iter().collect();
    let advance = ResultValue::Text(format!("advance {}", u64::MAX));
    let json = ResultValue::Json("[1]".to_string());
    let expected = [
        ("00", &advance),
        ("signed", &ResultValue::Signed(-1)),
        ("float", &ResultValue::Float(0.25)),
        ("json", &json),
    ];
    assert_eq!(results, expected);
}

const REFUSED: &str = "update `faithful` evaluates type `sample` of 8 bytes (value I64), and \
                       program(4711)/sample writes type `sample` of 8 bytes (value U64): nothing of \
                       this sensor is evaluated by it";

#[test]
fn sensor_of_another_type_is_refused() {
    let Some(plugin) = plugin() else { return };
    let mut update = create(&plugin, "faithful", "");
    let other = descriptor(1, "sample", 64);
    call(&mut update, &other, &7_u64.to_ne_bytes());
    assert_eq!(texts(&mut update), ["advance 90"]);
    assert_eq!(update.refuses(&other).as_deref(), Some(REFUSED));
}

#[test]
fn set_counts_only_elements_that_reach_an_update() {
    let Some(plugin) = plugin() else { return };
    let mut set = UpdateSet::new();
    let mut add = |update| set.add(update, Binding::new("it").subscribe(Subscription::all()));
    let typed = add(create(&plugin, "faithful", "")).unwrap();
    let broken = add(create(&plugin, "fragile", "element")).unwrap();
    let (fits, other) = (sample(), descriptor(1, "sample", 64));
    set.open(&fits);
    set.open(&other);
    for (sequence, stream) in [&other, &fits, &other, &fits].into_iter().enumerate() {
        set.element(&ElementView {
            stream,
            sequence: sequence as u64,
            time: at(70),
            payload: &7_u64.to_ne_bytes(),
        });
    }
    set.gap(&other, &gap(&other));
    set.advance(at(90));
    // Two were of another type, and the update gets no gap there.
    let status = typed.status();
    assert_eq!((status.elements, status.missed), (2, 0));
    assert_eq!(status.complaints, [REFUSED]);
    assert_eq!(status.state, UpdateState::Running);
    // It failed at the first.
    let why = "`element` failed: it panicked: it broke in element";
    let status = broken.status();
    assert_eq!((status.elements, status.missed), (1, 0));
    assert_eq!(status.state, UpdateState::Failed(why.to_string()));
    // The first call reached the broken one; the third call reached no update.
    assert_eq!(set.elements(), 3);
}

#[test]
fn panic_becomes_a_message_and_the_update_is_called_no_more() {
    let Some(plugin) = plugin() else { return };
    for place in ["open", "warm_up", "element", "gap", "advance", "report"] {
        let mut update = create(&plugin, "fragile", place);
        assert_eq!(update.sensors(), Some("program/*"));
        assert_eq!(update.missed_policy(), MissedPolicy::Stop);
        let stream = descriptor(1, "any", 64);
        for _ in 0..2 {
            call(&mut update, &stream, &7_u64.to_ne_bytes());
        }
        let returned = texts(&mut update);
        let message = format!("`{place}` failed: it panicked: it broke in {place}");
        assert_eq!(update.failure(), Some(message.as_str()));
        assert_eq!(returned.is_empty(), place == "report");
    }
    // Without a panic, because it returns a failure.
    let mut update = create(&plugin, "fragile", "failure");
    update.open(&descriptor(1, "any", 64));
    assert_eq!(update.failure(), Some("`open` failed: it says so itself"));
    // A destructor has no caller that could receive the message.
    drop(create(&plugin, "fragile", "drop"));
    let error = plugin
        .create(Some("fragile"), "create")
        .unwrap_err()
        .to_string();
    let reason = "update `fragile` cannot be created: it panicked: it broke in create";
    assert!(error.ends_with(reason), "{error}");
    let error = plugin.create(None, "a\0b").unwrap_err().to_string();
    assert!(error.ends_with("its argument has a zero byte"), "{error}");
}

#[test]
fn invalid_plugin_is_refused_with_file_and_entry() {
    let here = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let refused = |place: &std::path::Path, words: &str| {
        let error = Plugin::load(place).unwrap_err().to_string();
        let file = place.display().to_string();
        assert!(error.starts_with(&format!("plug-in {file} ")), "{error}");
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    };
    refused(&here.join("nowhere.so"), "does not load: ");
    let text = here.join("text.so");
    std::fs::write(&text, "no shared object").unwrap();
    refused(&text, "does not load: ");
    // A library that all programs have loaded.
    let all = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libraries = all.lines().filter_map(|line| line.split_once('/'));
    let mut libraries = libraries.map(|(_, path)| format!("/{path}"));
    match libraries.find(|path| path.contains("libc.so")) {
        Some(library) => refused(library.as_ref(), "lacks the function `oh_plugin_v1`"),
        None => println!("skipped: this program has no shared libc"),
    }
    let Some(plugin) = plugin() else { return };
    let error = plugin.create(Some("nobody"), "").unwrap_err().to_string();
    let known = "has no update `nobody`; it has `fragile`, `faithful`, `placed`";
    assert!(error.ends_with(known), "{error}");
}
