// SPDX-License-Identifier: MIT OR Apache-2.0
//! The charges of users.
//!
//! A memory file is charged until the kernel frees it: other processes may have a descriptor or a
//! map after the directory has closed it. Everything else is charged as long as the directory has
//! it.

use std::collections::{BTreeMap, HashMap};

use overhear_event::StreamId;

use super::Registry;
use crate::file_watch::{FileCharge, FileWatch, Freed, WatchId};
use crate::journal::Entry;
use crate::memory::MemoryFile;
use crate::quota::{Amounts, Resource, Shortage};

/// The charges of existing files.
#[derive(Debug, Default)]
pub(super) struct FileCharges {
    watch: Option<FileWatch>,
    of_files: BTreeMap<WatchId, (u32, Amounts)>,
}

/// Why a request is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A quota is used up, and may be released later.
    Shortage(Shortage),
    /// For a reason that does not pass.
    Permanent(String),
}

impl Refusal {
    pub(crate) fn into_message(self) -> String {
        match self {
            Self::Shortage(shortage) => shortage.message,
            Self::Permanent(message) => message,
        }
    }
}

impl From<Shortage> for Refusal {
    fn from(shortage: Shortage) -> Self {
        Self::Shortage(shortage)
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self::Permanent(message)
    }
}

impl From<&str> for Refusal {
    fn from(message: &str) -> Self {
        Self::Permanent(message.to_string())
    }
}

fn entry(watch: WatchId, uid: u32, charged: Amounts) -> Entry {
    Entry::Charged {
        watch: watch.as_raw(),
        uid,
        bytes: charged.get(Resource::BufferBytes),
        sensors: charged.get(Resource::Sensors),
        record_bytes: charged.get(Resource::RecordBytes),
        deferred: charged.get(Resource::Deferred),
    }
}

/// Retained buffers that are scanned for one without readers, at most.
const MAX_RETAINED_SCANNED: usize = 64;

impl Registry {
    /// Sets the inotify instance, a new one or a stored one.
    pub(crate) fn watch_files(&mut self, watch: FileWatch) {
        self.files.watch = Some(watch);
    }

    pub(crate) const fn file_watch(&self) -> Option<&FileWatch> {
        self.files.watch.as_ref()
    }

    /// Charges a user. If a quota is used up, charges of files freed meanwhile are released first;
    /// then retained trace areas are closed and retained buffers without readers are freed, oldest
    /// first: those of the same user, and for root those of all users.
    pub(crate) fn charge(&mut self, uid: u32, wanted: Amounts) -> Result<(), Shortage> {
        loop {
            let shortage = match self.quotas.charge(uid, wanted) {
                Ok(()) => return Ok(()),
                Err(shortage) => shortage,
            };
            if self.collect_freed() {
                continue;
            }
            let frees = matches!(
                shortage.resource,
                Resource::BufferBytes
                    | Resource::RecordBytes
                    | Resource::Sensors
                    | Resource::Descriptors
            );
            if frees && !shortage.is_permanent && self.close_oldest_area(uid) {
                continue;
            }
            let oldest = match frees && !shortage.is_permanent {
                true => self.oldest_unread(uid),
                false => None,
            };
            match oldest {
                Some(stream) => self.free(stream),
                None => return Err(shortage),
            }
        }
    }

    /// The retained buffer to free for a user.
    fn oldest_unread(&self, uid: u32) -> Option<StreamId> {
        let unread = |stream: &StreamId| {
            let sensor = self.sensors.get(stream);
            sensor.is_some_and(|sensor| sensor.holders.is_empty())
        };
        let own = self.retained_of.get(&uid).into_iter().flatten();
        let own = own.map(|&(_, stream)| stream);
        own.take(MAX_RETAINED_SCANNED).find(unread).or_else(|| {
            let all = self.retained.iter().map(|&(_, stream)| stream);
            let mut all = all.take(MAX_RETAINED_SCANNED);
            all.find(|stream| self.quotas.is_privileged(uid) && unread(stream))
        })
    }

    /// Releases amounts of a user.
    pub(crate) fn release(&mut self, uid: u32, gone: Amounts) {
        self.quotas.release(uid, gone);
        self.note_room();
    }

    /// Watches a file before a program gets it. Its charge is released when the kernel frees it.
    ///
    /// # Errors
    /// A message if it cannot be watched, in a directory that serves more than one program.
    pub(crate) fn charge_file(
        &mut self,
        file: &MemoryFile,
        uid: u32,
        charged: Amounts,
    ) -> Result<FileCharge, Refusal> {
        let watched = self.files.watch.as_ref().map(|watch| watch.add(file));
        match watched {
            Some(Ok(watch)) => {
                self.files.of_files.insert(watch, (uid, charged));
                if let Some(journal) = &mut self.journal {
                    journal.write(&entry(watch, uid, charged));
                }
                Ok(FileCharge::Watched(watch))
            }
            _ if self.has_embedded_monitor() => Ok(FileCharge::Unwatched(uid, charged)),
            Some(Err(error)) => Err(format!(
                "the directory cannot watch its buffer ({error}); raise fs.inotify.max_user_watches"
            )
            .into()),
            None => Err(
                "the directory cannot watch its buffer; raise fs.inotify.max_user_instances".into(),
            ),
        }
    }

    /// Replaces the charge of a file. The new one has been charged already; the old one is
    /// released.
    pub(crate) fn recharge_file(
        &mut self,
        charge: &mut FileCharge,
        uid: u32,
        before: Amounts,
        charged: Amounts,
    ) {
        match charge {
            FileCharge::Unwatched(_, amounts) => *amounts = charged,
            FileCharge::Watched(watch) => {
                self.files.of_files.insert(*watch, (uid, charged));
                if let Some(journal) = &mut self.journal {
                    journal.write(&entry(*watch, uid, charged));
                }
            }
        }
        self.quotas.release(uid, before);
    }

    /// Restores the charges of files that still exist after a restart.
    pub(crate) fn restore_charges(&mut self, charges: HashMap<WatchId, (u32, Amounts)>) {
        let Some(watch) = &self.files.watch else {
            return;
        };
        // Without a list of live watches all charges count: too many, until the next restart.
        let live = watch.live().ok();
        for (id, (uid, charged)) in charges {
            if live.as_ref().is_none_or(|live| live.contains(&id)) {
                self.quotas.count(uid, charged);
                self.files.of_files.insert(id, (uid, charged));
            }
        }
        // Watches of a directory that died before the journal had their entries.
        for unknown in live.into_iter().flatten() {
            if !self.files.of_files.contains_key(&unknown) {
                watch.remove(unknown);
            }
        }
    }

    /// The charges of files from a watch on, for a journal.
    pub(crate) fn charges_from(
        &self,
        first: WatchId,
    ) -> impl Iterator<Item = (WatchId, Entry)> + '_ {
        let all = self.files.of_files.range(first..);
        all.map(|(watch, (uid, charged))| (*watch, entry(*watch, *uid, *charged)))
    }

    /// The directory has closed a file.
    pub(crate) fn file_closed(&mut self, charge: Option<FileCharge>) {
        match charge {
            Some(FileCharge::Unwatched(uid, charged)) => self.release(uid, charged),
            // This was often the last reference.
            Some(FileCharge::Watched(_)) | None => {
                self.collect_freed();
            }
        }
    }

    /// Releases the charges of files that the kernel has freed since the last call. True if there
    /// were any.
    pub(crate) fn collect_freed(&mut self) -> bool {
        let Some(watch) = &self.files.watch else {
            return false;
        };
        let freed = match watch.take_freed() {
            Freed::These(freed) => freed,
            Freed::TooMany => {
                let Ok(live) = watch.live() else {
                    return false;
                };
                let known = self.files.of_files.keys();
                known
                    .filter(|watch| !live.contains(watch))
                    .copied()
                    .collect()
            }
        };
        let mut any = false;
        for watch in freed {
            if let Some((uid, charged)) = self.files.of_files.remove(&watch) {
                self.quotas.release(uid, charged);
                any = true;
            }
        }
        if any {
            self.note_room();
        }
        any
    }
}
