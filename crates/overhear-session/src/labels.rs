// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names for the key by which a metric divides its measurements.

use std::collections::BTreeMap;

use overhear_metrics::automaton::Metric;
use overhear_trace::name_of_number;

/// Fields of kernel elements that hold a thread id.
pub(crate) const THREAD_FIELDS: [&str; 6] = [
    "prev_tid",
    "next_tid",
    "waker_tid",
    "sender_tid",
    "other_tid",
    "by_tid",
];
/// Fields that hold an address.
const ADDRESS_FIELDS: [&str; 2] = ["address", "function"];

/// Names for the values of a metric's key.
pub(crate) struct KeyLabels<'a> {
    /// Sensor and field of the key, if it is a kernel sensor.
    key: Option<(&'a str, &'a str)>,
    comms: &'a BTreeMap<u32, String>,
}

impl<'a> KeyLabels<'a> {
    /// The labels of this metric. `comms` are the names of threads.
    pub(crate) fn of(metric: &'a Metric, comms: &'a BTreeMap<u32, String>) -> Self {
        let specification = metric.specification();
        let key = specification.key.as_ref().and_then(|key| {
            let mut symbols = specification.symbols.iter();
            let symbol = symbols.find(|symbol| symbol.name.text == key.symbol.text)?;
            let sensor = symbol.source.as_str().strip_prefix("kernel:")?;
            Some((sensor, key.field.text.as_str()))
        });
        Self { key, comms }
    }

    /// The name of a value; `None` if it is only a number. The name of a thread begins with its id,
    /// because several threads may share a name.
    pub(crate) fn name(&self, key: u64) -> Option<String> {
        let (sensor, field) = self.key?;
        if THREAD_FIELDS.contains(&field) {
            let comm = match u32::try_from(key).ok()? {
                0 => "idle",
                tid => self.comms.get(&tid)?,
            };
            return Some(format!("{key} {comm}"));
        }
        if ADDRESS_FIELDS.contains(&field) {
            return Some(format!("{key:#x}"));
        }
        name_of_number(sensor, field, key).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use overhear_metrics::automaton::{system_metric, Metric};

    use super::KeyLabels;

    #[test]
    fn kernel_keys_have_labels() {
        let comms = BTreeMap::from([(7, "worker".to_owned())]);
        for (metric, key, name) in [
            ("off_cpu", 0, Some("runnable")),
            ("off_cpu", 0x2001, Some("interruptible, freezable")),
            ("blocked", 2, Some("uninterruptible")),
            ("preemption", 7, Some("7 worker")),
            ("preemption", 8, None),
            ("preemption", 0, Some("0 idle")),
            ("system_call", 0xffff_ffff, None),
            ("softirq", 1, Some("timer")),
            ("page_fault", 1, Some("in the program")),
            ("block_io", 1, Some("write")),
            ("futex_wait", 6, Some("lock with priority inheritance")),
            ("futex_blocking", 0xab_cdef, Some("0xabcdef")),
            ("lock_wait", 32, Some("mutex")),
            ("interrupt", 1, None),
            ("time_slice", 128, Some("ended")),
            ("run_delay", 0, None),
        ] {
            let metric = system_metric(metric).unwrap();
            let named = KeyLabels::of(&metric, &comms).name(key);
            assert_eq!(named.as_deref(), name, "{} {key}", metric.name());
        }
    }

    #[test]
    fn field_of_a_program_has_no_labels() {
        let text = "metric m\nevent a = user:syscall\nby a.number\nstate 0 out\nstate 1 begin\n\
            state 2 end\n0 -> 1: a, i\n1 -> 2: a, i\n";
        let metric: Metric = text.parse().unwrap();
        assert_eq!(KeyLabels::of(&metric, &BTreeMap::new()).name(0), None);
    }
}
