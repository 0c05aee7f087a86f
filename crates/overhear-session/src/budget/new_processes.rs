// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NewProcesses`]: the processes that the program creates, whose CPU time belongs to its budget.

use std::collections::BTreeSet;

use overhear_event::kernel::{Life, TASK_LIFE};
use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};

/// Process ids that elements of the kernel sensor `task_life` name for the first time.
#[derive(Debug, Default)]
pub(crate) struct NewProcesses {
    seen: BTreeSet<u32>,
    new: Vec<u32>,
}

impl NewProcesses {
    /// Those since the last call.
    pub(crate) fn take(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.new)
    }
}

impl Analysis for NewProcesses {
    fn element(&mut self, element: &ElementView<'_>) {
        if element.stream.sensor != TASK_LIFE {
            return;
        }
        let Some(life) = Life::parse(element.payload) else {
            return;
        };
        match life.kind {
            // The id may be used again.
            Life::EXIT if life.tid == life.pid => {
                self.seen.remove(&life.pid);
            }
            Life::EXIT | Life::UNTRACKED => {}
            _ if self.seen.insert(life.pid) => self.new.push(life.pid),
            _ => {}
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::kernel::{Life, TASK_LIFE};
    use overhear_event::{Analysis, ElementView, Origin, StreamDescriptor, StreamId, Timestamp};
    use overhear_kernel::Sensor;

    use super::NewProcesses;

    #[test]
    fn each_process_is_new_once_until_it_ends() {
        let sensor = Sensor::all().find(|it| it.name() == TASK_LIFE).unwrap();
        let stream = StreamDescriptor {
            id: StreamId::from_raw(1),
            origin: Origin::Kernel { cpu: 0 },
            sensor: TASK_LIFE.to_owned(),
            instance: String::new(),
            lane: None,
            schema: Arc::new(sensor.schema()),
            rate: None,
            capacity: 8,
        };
        let mut processes = NewProcesses::default();
        let mut elements = 0;
        let mut names = |kind: u32, tid: u32, pid: u32| {
            let words = [tid, pid, 0, 0, kind].map(u32::to_ne_bytes).concat();
            let mut payload = vec![0; stream.schema.size() as usize];
            payload[..words.len()].copy_from_slice(&words);
            processes.element(&ElementView {
                stream: &stream,
                sequence: elements,
                time: Timestamp::from_monotonic_ns(elements),
                payload: &payload,
            });
            elements += 1;
            processes.take()
        };
        assert_eq!(names(Life::FORK, 7, 7), [7]);
        assert!(names(Life::FORK, 8, 7).is_empty());
        assert!(names(Life::EXIT, 8, 7).is_empty());
        assert!(names(Life::NAME, 7, 7).is_empty());
        assert!(names(Life::EXIT, 7, 7).is_empty());
        assert_eq!(names(Life::FORK, 7, 7), [7]);
    }
}
