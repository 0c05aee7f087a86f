// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of a directory: those of its configuration, and defaults from the machine's limits
//! for the others. Pure.

use crate::quota::{Limit, Limits, LimitsOfUsers, Quotas, Resource};

/// Descriptors besides those of connections and sensors: sockets, clock, journal, pipes.
const OTHER_DESCRIPTORS: u64 = 64;
/// Maximum number of stored files. The service manager passes their names in one variable of at
/// most 128 KiB; with more the directory could not be started again.
const KEPT_FILES: u64 = 14_000;
/// Descriptors of a connection: the socket and the pidfd of its peer.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// The machine's limits for the directory's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) memory_bytes: u64,
    /// Descriptors of this process (`RLIMIT_NOFILE`).
    pub(crate) descriptors: u64,
    /// Watches on files (`fs.inotify.max_user_watches`).
    pub(crate) watches: u64,
}

/// The limits that a configuration sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitSettings {
    /// For all users, by resource.
    pub(crate) all: Vec<(Resource, u64)>,
    /// For each user.
    pub(crate) each: Vec<(Resource, u64)>,
    pub(crate) of_users: LimitsOfUsers,
    /// Whether the directory serves one program: then users need no protection from each other.
    pub(crate) is_embedded: bool,
}

impl LimitSettings {
    /// The quotas of this owner's directory on this machine, with nothing used.
    pub(crate) fn quotas(&self, machine: &Machine, owner: u32) -> Quotas {
        Quotas::new(self.resolve(machine), self.of_users.clone(), owner)
    }

    fn resolve(&self, machine: &Machine) -> Limits {
        let connections = (machine.descriptors / 8).clamp(32, 1024);
        let monitors = (machine.descriptors / 16).clamp(16, 256);
        let connected = DESCRIPTORS_PER_CONNECTION * (connections + monitors);
        let descriptors = machine
            .descriptors
            .saturating_sub(connected + OTHER_DESCRIPTORS)
            .max(machine.descriptors / 4);
        // Other processes of the directory's user have watches, too.
        let sensors = (64 * 1024).min(descriptors).min(machine.watches / 4 * 3);
        // A small machine is assumed if the kernel gives no number.
        let memory = machine.memory_bytes.max(2 * GIB);
        let buffers = match self.is_embedded {
            true => GIB,
            false => memory / 2,
        };
        let records = (memory / 8).min(512 * MIB);
        let standard = [
            (Resource::BufferBytes, buffers),
            (Resource::RecordBytes, records),
            (Resource::Sensors, sensors),
            (Resource::Descriptors, descriptors),
            (Resource::Connections, connections),
            (Resource::Monitors, monitors),
            (Resource::Patterns, 256 * 1024),
            (Resource::Deferred, 1024),
            (Resource::Kept, KEPT_FILES),
        ];
        let mut limits = Limits::NONE;
        for (resource, standard) in standard {
            let configured = |of: &[(Resource, u64)]| {
                let found = of.iter().find(|(other, _)| *other == resource);
                found.map(|(_, amount)| *amount)
            };
            let all = configured(&self.all).unwrap_or(standard);
            *limits.get_mut(resource) = self.limit(resource, all, configured(&self.each));
        }
        limits
    }

    fn limit(&self, resource: Resource, all: u64, configured: Option<u64>) -> Limit {
        let shared = Limit::shared(all);
        // Far above the need of programs, far below the machine's memory.
        let standard = match resource {
            Resource::BufferBytes => GIB,
            Resource::Sensors => 16 * 1024,
            _ => u64::MAX,
        };
        let is_of_programs = matches!(
            resource,
            Resource::BufferBytes | Resource::Sensors | Resource::Descriptors
        );
        match (configured, self.is_embedded && is_of_programs) {
            (Some(each), _) => Limit {
                each,
                privileged: each,
                ..shared
            },
            (None, true) => Limit {
                each: all,
                privileged: all,
                reserved: 0,
                all,
            },
            (None, false) => Limit {
                each: shared.each.min(standard),
                privileged: shared.privileged.min(standard),
                ..shared
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LimitSettings, Machine, GIB};
    use crate::journal::sensor_name;
    use crate::quota::{Limit, Resource};

    const SERVER: Machine = Machine {
        memory_bytes: 24 * GIB,
        descriptors: 262_144,
        watches: 190_000,
    };

    #[test]
    fn ordinary_user_gets_at_most_a_quarter() {
        let small = Machine {
            memory_bytes: GIB / 2,
            descriptors: 400,
            watches: 8_192,
        };
        for machine in [SERVER, small] {
            let limits = LimitSettings::default().resolve(&machine);
            for resource in Resource::ALL {
                let Limit {
                    all,
                    each,
                    privileged,
                    reserved,
                } = *limits.get(resource);
                assert!(each <= all / 4 && each > 0, "{resource:?}: {each} of {all}");
                assert!(reserved == all / 8 && privileged <= all, "{resource:?}");
            }
        }
        let all = |resource| LimitSettings::default().resolve(&small).get(resource).all;
        // The descriptors suffice for all connections and all sensors.
        let connections = all(Resource::Connections) + all(Resource::Monitors);
        assert!(2 * connections + all(Resource::Descriptors) <= 400);
        assert!(all(Resource::Descriptors) >= 100);
        assert!(all(Resource::Sensors) <= all(Resource::Descriptors));
    }

    #[test]
    fn table_of_the_documentation_is_what_a_server_gets() {
        let limits = LimitSettings::default().resolve(&SERVER);
        let of = |resource| {
            let limit = limits.get(resource);
            (limit.each, limit.all)
        };
        assert_eq!(of(Resource::BufferBytes), (GIB, 12 * GIB));
        assert_eq!(of(Resource::RecordBytes), (128 << 20, 512 << 20));
        assert_eq!(of(Resource::Sensors), (16_384, 65_536));
        assert_eq!(of(Resource::Connections), (256, 1_024));
        assert_eq!(of(Resource::Monitors), (64, 256));
        assert_eq!(of(Resource::Patterns), (65_536, 262_144));
        assert_eq!(of(Resource::Deferred), (256, 1_024));
        assert_eq!(of(Resource::Kept), (3_500, 14_000));
        // The name of the largest stream number, with its letter and a comma.
        let longest =
            sensor_name(overhear_event::StreamIdRange::SESSION.end().as_raw() - 1).len() as u64 + 1;
        assert!(of(Resource::Kept).1 * longest < 120 * 1024);
        // A sensor takes one, and its process at most two more.
        assert!(of(Resource::Descriptors).0 >= 3 * 16_384);
    }

    #[test]
    fn configured_limits_override_defaults_of_the_machine() {
        let settings = LimitSettings {
            all: vec![(Resource::BufferBytes, 1000)],
            each: vec![(Resource::BufferBytes, 500), (Resource::Monitors, 3)],
            ..LimitSettings::default()
        };
        let limits = settings.resolve(&SERVER);
        let bytes = Limit {
            all: 1000,
            each: 500,
            privileged: 500,
            reserved: 125,
        };
        assert_eq!(*limits.get(Resource::BufferBytes), bytes);
        assert_eq!(limits.get(Resource::Monitors).each, 3);
        let embedded = LimitSettings {
            is_embedded: true,
            ..LimitSettings::default()
        };
        let limits = embedded.resolve(&SERVER);
        assert_eq!(limits.get(Resource::BufferBytes).each, GIB);
        assert_eq!(limits.get(Resource::Connections).each, 256);
    }
}
