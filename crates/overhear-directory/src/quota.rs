// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much each user may take, and has taken. Pure.

use std::collections::BTreeMap;

/// Buffers: their bytes and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) sensors: u64,
}

/// Why something does not fit, and whose buffers would have to go for it: a user's or anybody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) sentence: String,
    pub(crate) user: Option<u32>,
}

/// Limits and what is used of them.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    total_bytes: u64,
    each: Usage,
    of_users: BTreeMap<u32, Usage>,
    used: BTreeMap<u32, Usage>,
    all: Usage,
}

impl Default for Quotas {
    /// A gibibyte for everybody together, and no limit for single users.
    fn default() -> Self {
        let each = Usage {
            bytes: u64::MAX,
            sensors: u64::MAX,
        };
        Self::new(1 << 30, each, BTreeMap::new())
    }
}

impl Quotas {
    /// `total_bytes` for all users together, `each` for a user unless `of_users` names it.
    pub(crate) fn new(total_bytes: u64, each: Usage, of_users: BTreeMap<u32, Usage>) -> Self {
        Self {
            total_bytes,
            each,
            of_users,
            used: BTreeMap::new(),
            all: Usage::default(),
        }
    }

    /// What all users have.
    pub(crate) const fn used(&self) -> Usage {
        self.all
    }

    /// Counts what is about to exist.
    pub(crate) fn reserve(&mut self, uid: u32, wanted: Usage) -> Result<(), Short> {
        let used = self.used.get(&uid).copied().unwrap_or_default();
        let limit = self.of_users.get(&uid).copied().unwrap_or(self.each);
        let bytes = wanted.bytes;
        let advice = "ask for fewer slots, or declare a lower rate";
        let left = self.total_bytes.saturating_sub(self.all.bytes);
        if bytes > left {
            let sentence = format!(
                "its buffer of {bytes} bytes exceeds the {left} bytes left of the quota of {} of \
                 this directory; {advice}",
                self.total_bytes
            );
            let user = None;
            return Err(Short { sentence, user });
        }
        let user = Some(uid);
        let left = limit.bytes.saturating_sub(used.bytes);
        if bytes > left {
            let sentence = format!(
                "its buffer of {bytes} bytes exceeds the {left} bytes left of the quota of {} of \
                 user {uid}; {advice}",
                limit.bytes
            );
            return Err(Short { sentence, user });
        }
        if used.sensors.saturating_add(wanted.sensors) > limit.sensors {
            let sentence = format!(
                "user {uid} has {} sensors already, and its quota is {}; take some out, or have \
                 the quota raised",
                used.sensors, limit.sensors
            );
            return Err(Short { sentence, user });
        }
        self.count(uid, wanted);
        Ok(())
    }

    /// Counts what exists already, quota or not: buffers that outlived a restart.
    pub(crate) fn count(&mut self, uid: u32, found: Usage) {
        let used = self.used.entry(uid).or_default();
        for sum in [used, &mut self.all] {
            sum.bytes = sum.bytes.saturating_add(found.bytes);
            sum.sensors = sum.sensors.saturating_add(found.sensors);
        }
    }

    /// Counts what exists no longer.
    pub(crate) fn release(&mut self, uid: u32, gone: Usage) {
        let used = self.used.entry(uid).or_default();
        for sum in [&mut *used, &mut self.all] {
            sum.bytes = sum.bytes.saturating_sub(gone.bytes);
            sum.sensors = sum.sensors.saturating_sub(gone.sensors);
        }
        // Users come and go; the account of one without buffers is not kept.
        if *used == Usage::default() {
            self.used.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Quotas, Usage};

    #[test]
    fn each_limit_is_named_when_it_is_short() {
        let usage = |bytes, sensors| Usage { bytes, sensors };
        let mut quotas = Quotas::new(100, usage(60, 3), BTreeMap::from([(7, usage(1000, 1))]));
        quotas.reserve(1, usage(50, 1)).unwrap();
        let short = quotas.reserve(1, usage(20, 1)).unwrap_err();
        assert!(short
            .sentence
            .contains("10 bytes left of the quota of 60 of user 1"));
        assert_eq!(short.user, Some(1));
        let short = quotas.reserve(7, usage(60, 1)).unwrap_err();
        assert!(short
            .sentence
            .contains("50 bytes left of the quota of 100 of this directory"));
        assert_eq!(short.user, None);
        quotas.reserve(7, usage(1, 1)).unwrap();
        let short = quotas.reserve(7, usage(1, 1)).unwrap_err();
        assert!(
            short.sentence.contains("has 1 sensors already"),
            "{short:?}"
        );
        quotas.release(1, usage(50, 1));
        quotas.release(7, usage(1, 1));
        assert_eq!(quotas.used(), usage(0, 0));
        assert!(quotas.used.is_empty());
    }
}
