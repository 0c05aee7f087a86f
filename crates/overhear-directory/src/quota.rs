// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of the directory each user may take, and has taken. Pure.
//!
//! # Rules
//!
//! 1. An amount is charged to a user before it exists, and released when it no longer does.
//! 2. [`Limit::all`] bounds all users together, [`Limit::each`] an ordinary user.
//! 3. Root and the directory's own user are *privileged*: [`Limit::privileged`] bounds each of
//!    them, and ordinary users together leave [`Limit::reserved`] to them.
//!
//! So no user can take what another one needs, and no number of ordinary users what root needs.

use std::collections::BTreeMap;

/// What a directory has a limited amount of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    /// Memory of buffers, in bytes, for as long as anybody holds it.
    BufferBytes,
    /// The directory's own memory, in bytes: descriptions of sensors, journal, control pages,
    /// patterns.
    RecordBytes,
    /// Buffers, for as long as anybody holds them.
    Sensors,
    /// File descriptors of sensors and processes.
    Descriptors,
    /// Connections over which no monitor has made itself known.
    Connections,
    /// Connections of monitors.
    Monitors,
    /// Characters of patterns that monitors have sent.
    Patterns,
    /// Sensors that wait for memory.
    Deferred,
    /// Files that outlive a restart.
    Kept,
}

const RESOURCES: usize = 9;

impl Resource {
    pub(crate) const ALL: [Self; RESOURCES] = [
        Self::BufferBytes,
        Self::RecordBytes,
        Self::Sensors,
        Self::Descriptors,
        Self::Connections,
        Self::Monitors,
        Self::Patterns,
        Self::Deferred,
        Self::Kept,
    ];
}

/// An amount of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts([u64; RESOURCES]);

impl Amounts {
    pub(crate) const NONE: Self = Self([0; RESOURCES]);

    pub(crate) const fn of(resource: Resource, amount: u64) -> Self {
        Self::NONE.and(resource, amount)
    }

    pub(crate) const fn and(mut self, resource: Resource, amount: u64) -> Self {
        self.0[resource as usize] = self.0[resource as usize].saturating_add(amount);
        self
    }

    pub(crate) const fn get(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (own, more) in self.0.iter_mut().zip(other.0) {
            *own = own.saturating_add(more);
        }
    }

    fn subtract(&mut self, other: &Self) {
        for (own, less) in self.0.iter_mut().zip(other.0) {
            *own = own.saturating_sub(less);
        }
    }
}

/// The limits of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Limit of all users together.
    pub(crate) all: u64,
    /// Limit of each ordinary user.
    pub(crate) each: u64,
    /// Limit of root, and of the directory's own user.
    pub(crate) privileged: u64,
    /// The part of `all` that ordinary users cannot use.
    pub(crate) reserved: u64,
}

impl Limit {
    pub(crate) const NONE: Self = Self {
        all: u64::MAX,
        each: u64::MAX,
        privileged: u64::MAX,
        reserved: 0,
    };

    /// A quarter for each ordinary user, and an eighth for root alone.
    pub(crate) const fn shared(all: u64) -> Self {
        Self {
            all,
            each: all / 4,
            privileged: all,
            reserved: all / 8,
        }
    }
}

/// The limits of every resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits([Limit; RESOURCES]);

impl Limits {
    pub(crate) const NONE: Self = Self([Limit::NONE; RESOURCES]);

    #[cfg(test)]
    pub(crate) const fn with(mut self, resource: Resource, limit: Limit) -> Self {
        self.0[resource as usize] = limit;
        self
    }

    pub(crate) const fn get(&self, resource: Resource) -> &Limit {
        &self.0[resource as usize]
    }

    pub(crate) const fn get_mut(&mut self, resource: Resource) -> &mut Limit {
        &mut self.0[resource as usize]
    }
}

/// Limits that single users have instead of [`Limit::each`].
pub(crate) type LimitsOfUsers = BTreeMap<u32, BTreeMap<Resource, u64>>;

/// The reason why amounts cannot be charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) resource: Resource,
    /// The user whose limit is exceeded; `None` for the limit of all users.
    pub(crate) user: Option<u32>,
    /// Whether the request exceeds the limit by itself, so that no release helps.
    pub(crate) is_permanent: bool,
    pub(crate) message: String,
}

impl Shortage {
    /// Whether a sensor can be deferred until buffers are released.
    pub(crate) const fn may_pass_for_buffers(&self) -> bool {
        !self.is_permanent && matches!(self.resource, Resource::BufferBytes | Resource::Sensors)
    }
}

/// The limits, and the amounts in use.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    limits: Limits,
    of_users: LimitsOfUsers,
    // The directory's own user.
    owner: u32,
    used: BTreeMap<u32, Amounts>,
    all: Amounts,
    // Of users that are not privileged.
    ordinary: Amounts,
}

impl Quotas {
    pub(crate) const fn new(limits: Limits, of_users: LimitsOfUsers, owner: u32) -> Self {
        Self {
            limits,
            of_users,
            owner,
            used: BTreeMap::new(),
            all: Amounts::NONE,
            ordinary: Amounts::NONE,
        }
    }

    /// Whether a user may use the reserve.
    pub(crate) const fn is_privileged(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner
    }

    /// The amounts of all users.
    pub(crate) const fn used(&self) -> &Amounts {
        &self.all
    }

    /// The amounts of a user.
    pub(crate) fn used_by(&self, uid: u32) -> Amounts {
        self.used.get(&uid).copied().unwrap_or_default()
    }

    /// Charges a user. After an error nothing is charged.
    pub(crate) fn charge(&mut self, uid: u32, wanted: Amounts) -> Result<(), Shortage> {
        for resource in Resource::ALL {
            if wanted.get(resource) > 0 {
                self.check(uid, resource, wanted.get(resource))?;
            }
        }
        self.count(uid, wanted);
        Ok(())
    }

    fn check(&self, uid: u32, resource: Resource, wanted: u64) -> Result<(), Shortage> {
        let limit = self.limits.get(resource);
        let own = self.of_users.get(&uid).and_then(|own| own.get(&resource));
        let most = match (own, self.is_privileged(uid)) {
            (Some(most), _) => *most,
            (None, true) => limit.privileged,
            (None, false) => limit.each,
        };
        let used = self.used_by(uid).get(resource);
        // A user whose own limit is that of all gets the message for all.
        if most < limit.all && wanted > most.saturating_sub(used) {
            return Err(Shortage {
                resource,
                user: Some(uid),
                is_permanent: wanted > most,
                message: phrase_for_user(resource, wanted, used, most, uid),
            });
        }
        let (used, most) = match self.is_privileged(uid) {
            true => (self.all.get(resource), limit.all),
            false => (
                self.ordinary.get(resource),
                limit.all.saturating_sub(limit.reserved),
            ),
        };
        // Ordinary users leave the reserve, so the sums of both kinds of users are bounded.
        let left = most.saturating_sub(used);
        let left = left.min(limit.all.saturating_sub(self.all.get(resource)));
        if wanted > left {
            return Err(Shortage {
                resource,
                user: None,
                is_permanent: wanted > most,
                message: phrase_for_all(resource, wanted, left, most),
            });
        }
        Ok(())
    }

    /// Charges without a check of the limits: for objects that outlived a restart.
    pub(crate) fn count(&mut self, uid: u32, found: Amounts) {
        self.used.entry(uid).or_default().add(&found);
        self.all.add(&found);
        if !self.is_privileged(uid) {
            self.ordinary.add(&found);
        }
    }

    /// Releases amounts.
    pub(crate) fn release(&mut self, uid: u32, gone: Amounts) {
        self.all.subtract(&gone);
        if !self.is_privileged(uid) {
            self.ordinary.subtract(&gone);
        }
        // Accounts without amounts are removed: users come and go.
        if let Some(used) = self.used.get_mut(&uid) {
            used.subtract(&gone);
            if *used == Amounts::NONE {
                self.used.remove(&uid);
            }
        }
    }

    /// The user with the largest amount of a resource, and the amount.
    pub(crate) fn largest_user(&self, resource: Resource) -> Option<(u32, u64)> {
        let all = self.used.iter();
        let all = all.map(|(uid, used)| (used.get(resource), *uid));
        let (most, uid) = all.max()?;
        (most > 0).then_some((uid, most))
    }
}

fn phrase_for_all(resource: Resource, wanted: u64, left: u64, most: u64) -> String {
    match resource {
        Resource::BufferBytes => format!(
            "its buffer of {wanted} bytes exceeds the {left} bytes left of the quota of {most} of \
             this directory; ask for fewer slots, or declare a lower rate"
        ),
        Resource::RecordBytes => format!(
            "it takes {wanted} bytes of the directory's own memory, of whose {most} only {left} are \
             left; use fewer fields, shorter names or fewer patterns, or raise total_record_bytes"
        ),
        Resource::Sensors => format!("{most} sensors are here already; take some out"),
        Resource::Descriptors => "this directory has no file descriptors left; raise its limit \
                                  (`ulimit -n`, or LimitNOFILE in its unit)"
            .to_string(),
        Resource::Connections => "too many programs are registering; try again later".to_string(),
        Resource::Monitors => format!("{most} monitors are here already; end one of them"),
        Resource::Patterns => format!(
            "its patterns have {wanted} characters, and {left} are left of the {most} for all \
             monitors; use fewer patterns"
        ),
        Resource::Deferred => format!("{most} sensors wait for memory already"),
        Resource::Kept => format!("the service manager keeps {most} files already"),
    }
}

fn phrase_for_user(resource: Resource, wanted: u64, used: u64, most: u64, uid: u32) -> String {
    let left = most.saturating_sub(used);
    match resource {
        Resource::BufferBytes => format!(
            "its buffer of {wanted} bytes exceeds the {left} bytes left of the quota of {most} of \
             user {uid}; ask for fewer slots, or declare a lower rate"
        ),
        Resource::RecordBytes => format!(
            "it takes {wanted} bytes of the directory's own memory, and {left} are left of the {most} \
             of user {uid}; use fewer fields, shorter names or fewer patterns"
        ),
        Resource::Sensors => format!(
            "user {uid} has {used} sensors already, and its quota is {most}; take some out, or have \
             the quota raised"
        ),
        Resource::Descriptors => format!(
            "user {uid} has {used} of the directory's file descriptors, and its quota is {most}; take \
             sensors out, or have the limit of descriptors raised (LimitNOFILE in the unit)"
        ),
        Resource::Connections => format!(
            "user {uid} has {used} connections here already, and its quota is {most}; try again later"
        ),
        Resource::Monitors => {
            format!("user {uid} has {used} monitors here already; end one of them")
        }
        Resource::Patterns => format!(
            "its patterns have {wanted} characters, and {left} are left of the {most} of user {uid}; \
             use fewer patterns"
        ),
        Resource::Deferred => {
            format!("user {uid} has {used} sensors already that wait for memory")
        }
        Resource::Kept => {
            format!("the service manager keeps {used} files of user {uid} already")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::{Amounts, Limit, Limits, Quotas, Resource};

    const OWNER: u32 = 1000;

    fn usage(bytes: u64, sensors: u64) -> Amounts {
        Amounts::of(Resource::BufferBytes, bytes).and(Resource::Sensors, sensors)
    }

    fn quotas() -> Quotas {
        let bytes = Limit {
            all: 100,
            each: 60,
            privileged: 90,
            reserved: 10,
        };
        let sensors = Limit {
            each: 3,
            ..Limit::NONE
        };
        let limits = Limits::NONE
            .with(Resource::BufferBytes, bytes)
            .with(Resource::Sensors, sensors);
        let own = BTreeMap::from([(Resource::BufferBytes, 1000), (Resource::Sensors, 1)]);
        Quotas::new(limits, BTreeMap::from([(7, own)]), OWNER)
    }

    #[test]
    fn each_limit_is_named_when_it_is_short() {
        let mut quotas = quotas();
        quotas.charge(1, usage(50, 1)).unwrap();
        let short = quotas.charge(1, usage(20, 1)).unwrap_err();
        let words = "10 bytes left of the quota of 60 of user 1";
        assert!(short.message.contains(words), "{short:?}");
        assert_eq!((short.user, short.is_permanent), (Some(1), false));
        assert!(quotas.charge(1, usage(61, 1)).unwrap_err().is_permanent);
        let short = quotas.charge(7, usage(60, 1)).unwrap_err();
        let words = "40 bytes left of the quota of 90 of this directory";
        assert!(short.message.contains(words), "{short:?}");
        assert_eq!((short.user, short.resource), (None, Resource::BufferBytes));
        quotas.charge(7, usage(1, 1)).unwrap();
        let short = quotas.charge(7, usage(1, 1)).unwrap_err();
        let words = "has 1 sensors already";
        assert!(short.message.contains(words), "{short:?}");
        quotas.release(1, usage(50, 1));
        quotas.release(7, usage(1, 1));
        assert_eq!(*quotas.used(), Amounts::NONE);
        assert!(quotas.used.is_empty());
    }

    #[test]
    fn ordinary_users_leave_the_reserve() {
        let mut quotas = quotas();
        quotas.charge(1, usage(60, 1)).unwrap();
        quotas.charge(2, usage(30, 1)).unwrap();
        assert!(quotas.charge(3, usage(1, 1)).is_err());
        assert_eq!(quotas.largest_user(Resource::BufferBytes), Some((1, 60)));
        for privileged in [0, OWNER] {
            quotas.charge(privileged, usage(5, 1)).unwrap();
        }
        assert!(quotas.charge(0, usage(1, 1)).is_err(), "nothing is left");
        quotas.release(1, usage(60, 1));
        assert!(quotas.charge(0, usage(86, 1)).is_err(), "more than its own");
        quotas.charge(0, usage(60, 1)).unwrap();
        assert!(quotas.charge(3, usage(1, 1)).is_err(), "root has it");
    }

    proptest! {
        /// Whatever is charged and released, no limit is exceeded and the sums add up.
        #[test]
        fn limits_hold_and_sums_add_up(steps in prop::collection::vec((0_u32..4, 1_u64..60, prop::bool::ANY), 0..200)) {
            let mut quotas = quotas();
            let users = [0, 1, 2, 7];
            let mut held: Vec<(u32, Amounts)> = Vec::new();
            for (user, bytes, is_release) in steps {
                if is_release && !held.is_empty() {
                    let (uid, amounts) = held.swap_remove(bytes as usize % held.len());
                    quotas.release(uid, amounts);
                } else if quotas.charge(users[user as usize], usage(bytes, 1)).is_ok() {
                    held.push((users[user as usize], usage(bytes, 1)));
                }
                let sum = |of: &dyn Fn(u32) -> bool| -> u64 {
                    let all = held.iter().filter(|(uid, _)| of(*uid));
                    all.map(|(_, amounts)| amounts.get(Resource::BufferBytes)).sum()
                };
                let bytes = Resource::BufferBytes;
                prop_assert_eq!(quotas.used().get(bytes), sum(&|_| true));
                for uid in users {
                    prop_assert_eq!(quotas.used_by(uid).get(bytes), sum(&|of| of == uid));
                }
                prop_assert!(sum(&|_| true) <= 100 && sum(&|uid| uid != 0) <= 90);
                prop_assert!(sum(&|uid| uid == 1) <= 60 && sum(&|uid| uid == 0) <= 90);
            }
        }
    }
}
