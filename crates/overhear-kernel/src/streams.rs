// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which streams there are and how they are numbered.

use std::sync::Arc;

use overhear_event::kernel::{
    Life, SchedStat, Switch, Wake, SCHEDSTAT, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE,
};
use overhear_event::{Origin, StreamDescriptor, StreamId, TypeSchema};

/// A place in the kernel where elements come from; each has one stream per CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// Context switches.
    Switch,
    /// Wake-ups.
    Wake,
    /// Fork, exec, exit, rename.
    Life,
}

impl Hook {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [Self; 3] = [Self::Switch, Self::Wake, Self::Life];

    /// The sensor's name.
    pub(crate) const fn sensor(self) -> &'static str {
        match self {
            Self::Switch => SCHED_SWITCH,
            Self::Wake => SCHED_WAKE,
            Self::Life => TASK_LIFE,
        }
    }

    /// Bytes per element in a ring: stamp and payload.
    pub(crate) const fn stride_bytes(self) -> u32 {
        match self {
            Self::Switch | Self::Wake => 32,
            Self::Life => 64,
        }
    }

    pub(crate) fn schema(self) -> TypeSchema {
        match self {
            Self::Switch => Switch::schema(),
            Self::Wake => Wake::schema(),
            Self::Life => Life::schema(),
        }
    }
}

/// Stream numbers: hook by hook, CPU by CPU, then the clerk's.
///
/// They do not depend on which sensor is active, so the caller can number its own streams behind
/// them before anything starts, and two runs on one machine number alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbering {
    first: u32,
    cpus: u32,
}

impl Numbering {
    pub(crate) const fn new(first: StreamId, cpus: u32) -> Self {
        Self {
            first: first.as_raw(),
            cpus,
        }
    }

    /// Possible CPUs.
    pub(crate) const fn cpus(self) -> u32 {
        self.cpus
    }

    /// How many numbers are reserved.
    pub(crate) const fn used(self) -> u32 {
        self.cpus * Hook::ALL.len() as u32 + 1
    }

    pub(crate) const fn id(self, hook: Hook, cpu: u32) -> StreamId {
        self.at(hook as u32 * self.cpus + cpu)
    }

    const fn at(self, offset: u32) -> StreamId {
        StreamId::from_raw(self.first.saturating_add(offset))
    }

    /// The stream of schedstat samples.
    pub(crate) const fn clerk(self) -> StreamId {
        self.at(self.used() - 1)
    }

    /// Describes the stream of a hook on one CPU.
    pub(crate) fn describe(
        self,
        hook: Hook,
        cpu: u32,
        schema: &Arc<TypeSchema>,
        capacity: u64,
    ) -> Arc<StreamDescriptor> {
        Arc::new(StreamDescriptor {
            id: self.id(hook, cpu),
            origin: Origin::Kernel { cpu },
            sensor: hook.sensor().to_owned(),
            instance: String::new(),
            lane: None,
            schema: Arc::clone(schema),
            rate: None,
            capacity,
        })
    }

    /// Describes the stream of schedstat samples.
    pub(crate) fn describe_clerk(self) -> Arc<StreamDescriptor> {
        Arc::new(StreamDescriptor {
            id: self.clerk(),
            origin: Origin::Clerk,
            sensor: SCHEDSTAT.to_owned(),
            instance: String::new(),
            lane: None,
            schema: Arc::new(SchedStat::schema()),
            rate: None,
            capacity: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Hook, Numbering, StreamId};

    #[test]
    fn numbers_are_dense_and_strides_fit_the_schemas() {
        let numbering = Numbering::new(StreamId::from_raw(10), 4);
        let mut ids: Vec<u32> = Hook::ALL
            .iter()
            .flat_map(|&hook| (0..4).map(move |cpu| numbering.id(hook, cpu).as_raw()))
            .collect();
        ids.push(numbering.clerk().as_raw());
        assert_eq!(ids, (10..10 + numbering.used()).collect::<Vec<_>>());
        for hook in Hook::ALL {
            assert_eq!(hook.stride_bytes(), 8 + hook.schema().size());
        }
    }
}
