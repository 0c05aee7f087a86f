// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is not heard although it wanted to be: nobody can say what was missed of it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::Registry;
use crate::journal::Entry;
use crate::peer::Peer;
use crate::record::UnheardRecord;
use crate::task;

/// How many unheard sensors are told one by one; a program that asks for ever must not fill the
/// memory.
const MAX_SENTENCES: usize = 100;
/// The latest of a user that are kept to be listed.
const MAX_RECORDS_OF_USER: usize = 64;
/// Users of whom there are any.
const MAX_USERS: usize = 256;
/// Characters of names and sentences.
const MAX_CHARACTERS: usize = 512;
/// How often a user is mentioned in the directory's log.
const REPORT: Duration = Duration::from_secs(60);

/// What is not heard although it wanted to be: nobody can say what was missed of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unheard {
    /// How many requests.
    pub count: u64,
    /// A sentence for each of the first hundred.
    pub sentences: Vec<String>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct UnheardSensors {
    not_taken: Unheard,
    total: u64,
    of_users: BTreeMap<u32, OfUser>,
}

#[derive(Debug, Default)]
struct OfUser {
    records: VecDeque<UnheardRecord>,
    // Since the last mention in the log, and when that was.
    unmentioned: u64,
    mentioned: Option<Instant>,
}

impl UnheardSensors {
    /// Those of an earlier life.
    pub(super) fn count_earlier(&mut self, earlier: u64) {
        self.total += earlier;
    }

    /// How many there were, in all lives of the directory.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    fn push(&mut self, record: UnheardRecord) {
        self.total += 1;
        self.not_taken.count += 1;
        if self.not_taken.sentences.len() < MAX_SENTENCES {
            self.not_taken.sentences.push(record.to_string());
        }
        if self.of_users.len() == MAX_USERS && !self.of_users.contains_key(&record.uid) {
            // Numbers of subordinate users are large, and those of root and of accounts small.
            self.of_users.pop_last();
        }
        let of_user = self.of_users.entry(record.uid).or_default();
        of_user.unmentioned += 1;
        let mut records = of_user.records.iter_mut();
        let same = records.find(|known| (known.pid, &known.sensor) == (record.pid, &record.sensor));
        if let Some(same) = same {
            let count = same.count + 1;
            *same = UnheardRecord { count, ..record };
            return;
        }
        if of_user.records.len() == MAX_RECORDS_OF_USER {
            of_user.records.pop_front();
        }
        of_user.records.push_back(record);
    }
}

impl Registry {
    /// Remembers that a sensor which wanted to be heard is not.
    pub(crate) fn unheard(&mut self, (pid, uid): (u32, u32), sensor: &str, sentence: &str) {
        // All of it comes from the program and has not been checked.
        let bounded = |text: &str| text.chars().take(MAX_CHARACTERS).collect();
        self.unheard.push(UnheardRecord {
            pid,
            uid,
            comm: task::of_pid(pid).comm,
            sensor: bounded(sensor),
            sentence: bounded(sentence),
            count: 1,
        });
        let count = self.unheard.total();
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::Unheard { count });
        }
    }

    /// What has not been heard since the last call.
    pub(crate) fn take_unheard(&mut self) -> Unheard {
        std::mem::take(&mut self.unheard.not_taken)
    }

    /// The latest that were not heard, as far as this peer may know of them.
    pub(crate) fn unheard_for(&self, peer: &Peer) -> impl Iterator<Item = &UnheardRecord> {
        let (uid, sees_all) = (peer.uid, self.quotas.is_privileged(peer.uid));
        let of_users = self.unheard.of_users.iter();
        let visible = of_users.filter(move |(of, _)| sees_all || **of == uid);
        visible.flat_map(|(_, of_user)| &of_user.records)
    }

    /// What the directory's log should say of them: a line for each user and minute.
    pub(super) fn report_unheard(&mut self, now: Instant) -> Vec<String> {
        let is_due = |of_user: &OfUser| {
            let mentioned = of_user.mentioned.map(|then| now.duration_since(then));
            of_user.unmentioned > 0 && mentioned.is_none_or(|since| since >= REPORT)
        };
        let mut lines = Vec::new();
        for (uid, of_user) in &mut self.unheard.of_users {
            if let (true, Some(last)) = (is_due(of_user), of_user.records.back()) {
                let count = std::mem::take(&mut of_user.unmentioned);
                lines.push(match count {
                    1 => format!("{last} (user {uid})"),
                    _ => format!("{count} sensors of user {uid} are not heard; the last: {last}"),
                });
                of_user.mentioned = Some(now);
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::{UnheardSensors, MAX_USERS};
    use crate::record::UnheardRecord;

    #[test]
    fn many_users_do_not_displace_root() {
        let mut all = UnheardSensors::default();
        for uid in [0, 1000].into_iter().chain(100_000..101_000) {
            all.push(UnheardRecord {
                pid: 1,
                uid,
                comm: "program".to_string(),
                sensor: "sensor".to_string(),
                sentence: "there is no room".to_string(),
                count: 1,
            });
        }
        assert_eq!(all.of_users.len(), MAX_USERS);
        assert!(all.of_users.contains_key(&0) && all.of_users.contains_key(&1000));
        assert_eq!(all.total(), 1002);
    }
}
