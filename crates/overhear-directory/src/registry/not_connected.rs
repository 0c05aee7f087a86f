// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors that were refused, given up or deferred: their missed elements cannot be counted.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::Registry;
use crate::journal::Entry;
use crate::peer::Peer;
use crate::sensor_record::NotConnectedRecord;
use crate::task;

/// Sensors with a message of their own, at most: endless requests must not fill the memory.
const MAX_MESSAGES: usize = 100;
/// Records kept per user, at most: the latest ones.
const MAX_RECORDS_OF_USER: usize = 64;
/// Users with records, at most.
const MAX_USERS: usize = 256;
/// Characters of a name or a message, at most.
const MAX_CHARACTERS: usize = 512;
/// Least time between two lines about a user in the directory's log.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Sensors that were refused, given up or deferred: their missed elements cannot be counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotConnected {
    /// Number of requests.
    pub count: u64,
    /// A message for each of the first hundred.
    pub messages: Vec<String>,
}

/// The records of all users.
#[derive(Debug, Default)]
pub(super) struct NotConnectedSensors {
    unreported: NotConnected,
    total: u64,
    of_users: BTreeMap<u32, UserRecords>,
}

#[derive(Debug, Default)]
struct UserRecords {
    records: VecDeque<NotConnectedRecord>,
    // Requests since the last line in the log, and the time of that line.
    unlogged: u64,
    logged_at: Option<Instant>,
}

impl NotConnectedSensors {
    /// Adds the requests from before a restart.
    pub(super) fn count_earlier(&mut self, earlier: u64) {
        self.total += earlier;
    }

    /// Number of requests, over all restarts.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    fn push(&mut self, record: NotConnectedRecord) {
        self.total += 1;
        self.unreported.count += 1;
        if self.unreported.messages.len() < MAX_MESSAGES {
            self.unreported.messages.push(record.to_string());
        }
        if self.of_users.len() == MAX_USERS && !self.of_users.contains_key(&record.uid) {
            // The user with the largest id goes: ids of subordinate users are large, those of root
            // and accounts small.
            self.of_users.pop_last();
        }
        let of_user = self.of_users.entry(record.uid).or_default();
        of_user.unlogged += 1;
        let mut records = of_user.records.iter_mut();
        let same = records.find(|known| (known.pid, &known.sensor) == (record.pid, &record.sensor));
        if let Some(same) = same {
            let count = same.count + 1;
            *same = NotConnectedRecord { count, ..record };
            return;
        }
        if of_user.records.len() == MAX_RECORDS_OF_USER {
            of_user.records.pop_front();
        }
        of_user.records.push_back(record);
    }
}

impl Registry {
    /// Records that a sensor was refused, given up or deferred.
    pub(crate) fn note_not_connected(
        &mut self,
        (pid, uid): (u32, u32),
        sensor: &str,
        message: &str,
    ) {
        // The texts come from the program, unchecked.
        let bounded = |text: &str| text.chars().take(MAX_CHARACTERS).collect();
        self.not_connected.push(NotConnectedRecord {
            pid,
            uid,
            comm: task::of_pid(pid).comm,
            sensor: bounded(sensor),
            message: bounded(message),
            count: 1,
        });
        let count = self.not_connected.total();
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::NotConnected { count });
        }
    }

    /// Takes the requests since the last call.
    pub(crate) fn take_not_connected(&mut self) -> NotConnected {
        std::mem::take(&mut self.not_connected.unreported)
    }

    /// The latest records that this peer may see.
    pub(crate) fn not_connected_for(
        &self,
        peer: &Peer,
    ) -> impl Iterator<Item = &NotConnectedRecord> {
        let (uid, sees_all) = (peer.uid, self.quotas.is_privileged(peer.uid));
        let of_users = self.not_connected.of_users.iter();
        let visible = of_users.filter(move |(of, _)| sees_all || **of == uid);
        visible.flat_map(|(_, of_user)| &of_user.records)
    }

    /// Lines for the directory's log: one per user and minute.
    pub(super) fn log_not_connected(&mut self, now: Instant) -> Vec<String> {
        let is_due = |of_user: &UserRecords| {
            let logged_at = of_user.logged_at.map(|then| now.duration_since(then));
            of_user.unlogged > 0 && logged_at.is_none_or(|since| since >= LOG_INTERVAL)
        };
        let mut lines = Vec::new();
        for (uid, of_user) in &mut self.not_connected.of_users {
            if let (true, Some(last)) = (is_due(of_user), of_user.records.back()) {
                let count = std::mem::take(&mut of_user.unlogged);
                lines.push(match count {
                    1 => format!("{last} (user {uid})"),
                    _ => {
                        format!("{count} sensors of user {uid} are not connected; the last: {last}")
                    }
                });
                of_user.logged_at = Some(now);
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::{NotConnectedSensors, MAX_USERS};
    use crate::sensor_record::NotConnectedRecord;

    #[test]
    fn many_users_do_not_displace_root() {
        let mut all = NotConnectedSensors::default();
        for uid in [0, 1000].into_iter().chain(100_000..101_000) {
            all.push(NotConnectedRecord {
                pid: 1,
                uid,
                comm: "program".to_string(),
                sensor: "sensor".to_string(),
                message: "there is no room".to_string(),
                count: 1,
            });
        }
        assert_eq!(all.of_users.len(), MAX_USERS);
        assert!(all.of_users.contains_key(&0) && all.of_users.contains_key(&1000));
        assert_eq!(all.total(), 1002);
    }
}
