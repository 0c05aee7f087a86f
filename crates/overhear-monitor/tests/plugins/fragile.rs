// SPDX-License-Identifier: MIT OR Apache-2.0
//! A plug-in whose updates panic, each in another function, and one that does not.

use overhear_event::{
    Analysis, ElementInPlace, ElementKey, ElementView, FieldKind, Gap, GapCause, StreamDescriptor,
    Timestamp, TypeSchema,
};
use overhear_monitor::plugin::{Exported, ResultValue, Results};
use overhear_monitor::MissedPolicy;

/// Panics in the function that its argument names, or returns a failure.
struct Fragile(String);

impl Fragile {
    fn reached(&self, place: &str) {
        assert!(self.0 != place, "it broke in {place}");
    }
}

impl Analysis for Fragile {
    fn failure(&self) -> Option<&str> {
        (self.0 == "failure").then_some("it says so itself")
    }

    fn open(&mut self, _: &StreamDescriptor) {
        self.reached("open");
    }

    fn warm_up(&mut self) {
        self.reached("warm_up");
    }

    fn element(&mut self, _: &ElementView<'_>) {
        self.reached("element");
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {
        self.reached("gap");
    }

    fn advance(&mut self, _: Timestamp) {
        self.reached("advance");
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.reached("drop");
        }
    }
}

impl Exported for Fragile {
    const NAME: &'static str = "fragile";
    const SENSORS: &'static str = "program/*";
    const MISSED: MissedPolicy = MissedPolicy::Stop;

    fn create(argument: &str) -> Result<Self, String> {
        let made = Self(argument.to_string());
        made.reached("create");
        Ok(made)
    }

    fn report(&self, results: &mut Results) {
        self.reached("report");
        results.set("argument", self.0.as_str());
    }
}

/// Returns all its calls as text, with elements of one type.
struct Faithful {
    seen: Vec<String>,
}

impl Analysis for Faithful {
    fn open(&mut self, stream: &StreamDescriptor) {
        let (label, event) = (stream.label(), stream.event());
        self.seen.push(format!("open {label}, {event}"));
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let value = element.field("value").map(|value| value.to_string());
        self.seen.push(format!(
            "element {} at {} of {}: {}, unit {}",
            element.sequence,
            element.time.as_monotonic_ns(),
            element.stream.sensor,
            value.unwrap_or_default(),
            element.stream.schema.fields()[0].unit,
        ));
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        assert_eq!(stream.id, gap.stream);
        let is_last = gap.cause == GapCause::Epoch;
        self.seen.push(format!(
            "gap {} + {} from {} to {}, {} {is_last}",
            gap.first,
            gap.missed,
            gap.from.as_monotonic_ns(),
            gap.to.as_monotonic_ns(),
            gap.cause
        ));
    }

    fn advance(&mut self, now: Timestamp) {
        self.seen.push(format!("advance {}", now.as_monotonic_ns()));
    }
}

impl Exported for Faithful {
    const NAME: &'static str = "faithful";

    fn expected() -> Option<TypeSchema> {
        let schema = TypeSchema::builder("sample").field("value", FieldKind::I64, "mV");
        schema.build().ok()
    }

    fn create(_: &str) -> Result<Self, String> {
        Ok(Self { seen: Vec::new() })
    }

    fn report(&self, results: &mut Results) {
        for (index, seen) in self.seen.iter().enumerate() {
            results.set(&format!("{index:02}"), seen.as_str());
        }
        results.set("signed", -1_i64);
        results.set("float", 0.25);
        results.set("json", ResultValue::Json("[1]".to_string()));
    }
}

/// Adds up what it prepared and may commit.
#[derive(Default)]
struct Placed {
    prepared: i64,
    sum: i64,
    dropped: i64,
}

impl Analysis for Placed {
    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        let mut last = [0; 4];
        element.load(300, &mut last);
        self.prepared = i32::from_ne_bytes(last).into();
        assert!(self.prepared >= 0, "it broke in prepare");
        element.key().sequence != 13
    }

    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        assert_eq!(element.stream.sensor, "voltage");
        match valid {
            true => self.sum += self.prepared,
            false => self.dropped += self.prepared,
        }
    }

    fn element(&mut self, _: &ElementView<'_>) {}
    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
    fn advance(&mut self, _: Timestamp) {}
}

impl Exported for Placed {
    const NAME: &'static str = "placed";
    const READS_IN_PLACE: bool = true;

    fn create(_: &str) -> Result<Self, String> {
        Ok(Self::default())
    }

    fn report(&self, results: &mut Results) {
        results.set("sum", self.sum);
        results.set("dropped", self.dropped);
    }
}

overhear_monitor::export_updates!(Fragile, Faithful, Placed);
